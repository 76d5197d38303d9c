"""`speculant serve`: an OpenAI-compatible server that learns from its traffic."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from speculant.cli.binding import Take, bind
from speculant.cli.commands import Command
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.packages import check_packages
from speculant.options import kinds, option
from speculant.options.drafting import AUTOMATIC, DEFAULT_METHOD, DraftingOptions
from speculant.options.model import ModelOptions
from speculant.options.serving import ServingOptions

if TYPE_CHECKING:
    from speculant.registry import Method

HELP = """\
Serve a model over OpenAI's and Anthropic's HTTP APIs.

Options can also be set by environment variables or by lines of the --config file: SPECULANT_ and the option's name,
such as SPECULANT_PORT=9000 and SPECULANT_SAVE_SECONDS=60.

SIGTERM or Ctrl-C lets requests finish and saves what was learned; a second one ends the server at once. SIGHUP reloads
the file of API keys, the memory and the bases."""

EXAMPLES = """
speculant serve                         # the bundled model, on this machine
speculant serve your/model --memory my.speculant  # learns from its traffic
speculant serve your.gguf --host 0.0.0.0          # SPECULANT_API_KEYS is set
speculant serve --parameters            # request parameters and their support
"""

_option = partial(option.option, panel="Server")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """What only the command knows."""

    served_name: str | None = _option(
        None,
        "the model's name for clients; default: its folder or id",
        kinds.text("it is empty", metavar="NAME"),
        flag="--served-model-name",
    )
    config: str | None = _option(
        None,
        "file of lines SPECULANT_NAME=value; flags and environment take precedence",
        kinds.text("name a file, or leave the option out", metavar="FILE"),
    )
    parameters: bool = _option(False, "print the table of request parameters and exit", kinds.FLAG)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve", cls=Command, help=HELP, epilog=EXAMPLES)(bind(serve))


def serve(
    options: StartOptions,
    flags: Annotated[
        dict[str, Any],
        Take(ServingOptions),
        Take(DraftingOptions, without=("memory", "memory_limit", "base")),
        Take(ModelOptions, arguments={"model": "MODEL"}),
    ],
) -> int:
    """Load the model, and serve it until a signal is received."""
    check_packages(("fastapi", "uvicorn", "dotenv", "prometheus_client"), what="`speculant serve`", extra="serve")
    if options.parameters:
        from speculant.serving.parameters import parameter_table

        print(parameter_table())
        return 0
    from speculant.serving.settings import load_settings

    loading, drafting, serving = load_settings(flags, config=options.config)
    if serving.memory_scope == "key" and not (drafting.method or drafting.head or drafting.drafter):
        # A head that comes with the model would be united with one memory for all.
        drafting = replace(drafting, method=DEFAULT_METHOD)
    return _serve(loading, drafting, serving, options.served_name)


def _serve(loading: ModelOptions, drafting: DraftingOptions, serving: ServingOptions, served_name: str | None) -> int:
    from speculant.cli.files import check_no_input, check_writable
    from speculant.cli.further_models import find_further_models
    from speculant.cli.loading import load_speculator, model_name
    from speculant.cli.loading_checks import check_drafting, check_named
    from speculant.cli.start_screen import start_screen
    from speculant.cli.terminal import say, waiting
    from speculant.core.drafter import Persistent
    from speculant.serving.keys import KeyRing
    from speculant.serving.loading import answering
    from speculant.serving.logs import configure_logging
    from speculant.serving.server import bind, make_server, url
    from speculant.serving.tracing import open_provider

    named = check_drafting(drafting)
    check_named(loading, drafting)
    check_kept(named, drafting, serving)
    keys, spans = len(KeyRing(serving)), open_provider(os.environ)
    if serving.memory is not None:
        check_writable(str(serving.memory))
        check_no_input(
            "--memory", serving.memory, [serving.corpus, *(() if serving.base == AUTOMATIC else serving.base)]
        )
        if serving.memory_strict:
            check_memories(serving)
    if serving.memory_scope == "key" and drafting.share is not None:
        raise UsageError("--share would mix the memories of different keys. Leave out --share or --memory-scope.")
    name = served_name or model_name(loading.model)
    with bind(serving) as bound:
        with answering(bound, serving):
            further = find_further_models(loading, drafting, serving, name=name)
            loaded = load_speculator(loading, drafting, texts=serving.max_concurrency)
            configure_logging(serving.log_format)
            with waiting("starting the server"):
                from speculant.serving.app import create_app
                from speculant.serving.start_speed import measure_speed

                speed = measure_speed(loaded.speculator, settings=loaded.settings)
            keeps = isinstance(loaded.speculator.drafter, Persistent)
            app = create_app(
                loaded.speculator,
                serving,
                model=name,
                method_settings=loaded.settings,
                further=further,
                spans=spans,
            )
        try:
            unused = list(app.state.unused_memories)
            screen = start_screen(
                loaded,
                serving,
                name=name,
                address=url(bound),
                speed=speed,
                prefixes=app.state.prefix_cache,
                keys=keys,
                keeps=keeps,
                unused=unused,
            )
            server = make_server(app, serving, lambda: say(screen), app.state.reloader.start)
            gc.freeze()  # exempts the model's objects from garbage collection, which large bodies trigger
            server.run(sockets=[bound])
        finally:
            loaded.speculator.close()
    return 0


def check_kept(named: Method | None, drafting: DraftingOptions, serving: ServingOptions) -> None:
    """Check before loading a model that the named method can keep and load the files, and that the corpus is valid.

    Raises:
        UnsupportedError: it cannot.
        FileError, MemoryFileError: the corpus cannot be used.
    """
    from speculant.memory.file import read_header

    given = serving.memory is not None or serving.corpus is not None
    if given and named is not None and not (named.loads_memory or drafting.online):
        raise UnsupportedError(
            f"the method '{named.name}' keeps no memory; leave out --memory and --corpus, or use --method mix."
        )
    if serving.memory is not None and named is not None and not (named.keeps_memory or drafting.online):
        raise UnsupportedError(
            f"the method '{named.name}' can start from a memory but saves none; name the file by --corpus instead of "
            "--memory."
        )
    if serving.corpus is not None:
        read_header(serving.corpus)


def check_memories(serving: ServingOptions) -> None:
    """Check before loading a model that existing memory files are intact.

    Raises:
        FileError, MemoryFileError: one is not.
    """
    from speculant.memory.file import read_any_memory
    from speculant.serving.keys import KeyRing
    from speculant.serving.memory_keeper import tenant_path

    by_key = serving.memory_scope == "key"
    tenants = list(KeyRing(serving).tenants.values()) if by_key else [""]
    for tenant in tenants:
        path = tenant_path(Path(str(serving.memory)), tenant)
        if path.exists():
            read_any_memory(path)
