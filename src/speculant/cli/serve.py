"""`speculant serve`: an OpenAI-compatible server that learns from its traffic."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from speculant.cli.commands import Command
from speculant.cli.options import (
    DEFAULT_METHOD,
    AttentionOption,
    BaseOption,
    DeviceOption,
    DraftDeviceOption,
    DraftDtypeOption,
    DrafterOption,
    Drafting,
    DraftModelsOption,
    DtypeOption,
    FastOption,
    HeadOption,
    Loading,
    LossyFlag,
    MemoryLimitOption,
    MethodOption,
    ModelArgument,
    NoBaseFlag,
    NodesOption,
    OnlineFlag,
    SetOption,
    ShareOption,
    StrictFlag,
    ThreadsOption,
    VerifierOption,
    named_bases,
)
from speculant.cli.terminal import counted
from speculant.cli.values import nonempty, positive, whole
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.packages import check_packages
from speculant.memory.file import read_header

if TYPE_CHECKING:
    from speculant.cli.loading import Loaded
    from speculant.registry import Method
    from speculant.serving.settings import ServingSettings

HELP = """\
Serve a model over HTTP, as OpenAI's API does.

Settings of the server, limits and memory can also come from environment variables, or from lines of the file that
--config names: SPECULANT_ and the option's name, such as SPECULANT_PORT=9000 and SPECULANT_SAVE_SECONDS=60.

SIGTERM or Ctrl-C lets requests end and saves what was learned; a second one ends at once."""

EXAMPLES = """
speculant serve                         # the bundled model, on this machine
speculant serve your/model --memory my.speculant  # learns from its traffic
speculant serve your.gguf --host 0.0.0.0          # SPECULANT_API_KEYS is set
speculant serve --parameters            # of requests: which are honoured
"""
_SERVER, _LIMITS = "Server", "Limits"
_file = nonempty("name a file, or leave the option out")


def _text(name: str, metavar: str, text: str, panel: str = _SERVER) -> Any:
    return typer.Option(name, metavar=metavar, help=text, parser=nonempty("it is empty"), rich_help_panel=panel)


def _number(name: str, metavar: str, text: str, least: int = 1) -> Any:
    return typer.Option(name, metavar=metavar, help=text, parser=whole(least), rich_help_panel=_LIMITS)


def _seconds(name: str, text: str, panel: str) -> Any:
    return typer.Option(name, metavar="S", help=text, parser=positive, rich_help_panel=panel)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve", cls=Command, help=HELP, epilog=EXAMPLES)(serve)


def serve(
    model: ModelArgument = None,
    host: Annotated[str | None, _text("--host", "ADDRESS", "where to listen; default: 127.0.0.1")] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", metavar="N", parser=whole(0, 65535), help="default: 8000; 0 for any", rich_help_panel=_SERVER
        ),
    ] = None,
    served_name: Annotated[
        str | None, _text("--served-model-name", "NAME", "what clients call the model; default: its folder or id")
    ] = None,
    api_key: Annotated[
        list[str] | None,
        _text("--api-key", "KEY", "who may ask; may be repeated. SPECULANT_API_KEYS keeps it out of the process list"),
    ] = None,
    allow_no_key: Annotated[
        bool,
        typer.Option("--allow-no-key", help="listen beyond this machine without a key", rich_help_panel=_SERVER),
    ] = False,
    cors_origin: Annotated[
        list[str] | None,
        _text("--cors-origin", "ORIGIN", "let pages of this origin ask from a browser; may be repeated"),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE",
            parser=_file,
            help="lines SPECULANT_NAME=value; flags and the environment come first",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    log_format: Annotated[str | None, _text("--log-format", "NAME", "text or json; default: text")] = None,
    per_request_metrics: Annotated[
        bool,
        typer.Option(
            "--per-request-metrics",
            help="put drafting figures into every answer, as vLLM does",
            rich_help_panel=_SERVER,
        ),
    ] = False,
    parameters: Annotated[
        bool,
        typer.Option("--parameters", help="print the table of request parameters and exit", rich_help_panel=_SERVER),
    ] = False,
    max_concurrency: Annotated[
        int | None, _number("--max-concurrency", "N", "requests decoded together; default: 8")
    ] = None,
    max_queue: Annotated[int | None, _number("--max-queue", "N", "requests that may wait; default: 64", 0)] = None,
    prefix_cache: Annotated[
        int | None, _number("--prefix-cache", "MB", "for what prompts have in common; default: 256, 0 for none", 0)
    ] = None,
    prompt_chunk: Annotated[
        int | None,
        _number(
            "--prompt-chunk",
            "N",
            "most prompt tokens between two rounds; default: 128 on CPUs, 512 on other devices",
            0,
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None, _number("--max-new-tokens", "N", "most new tokens of a request; default: 4096")
    ] = None,
    max_prompt_tokens: Annotated[
        int | None, _number("--max-prompt-tokens", "N", "default: what the model has positions for")
    ] = None,
    max_body_bytes: Annotated[
        int | None, _number("--max-body-bytes", "N", "most bytes of a request; default: 1048576")
    ] = None,
    request_seconds: Annotated[
        float | None, _seconds("--request-seconds", "most time of a request, waiting included; default: 600", _LIMITS)
    ] = None,
    drain_seconds: Annotated[
        int | None, _number("--drain-seconds", "S", "for requests to end after SIGTERM; default: 30")
    ] = None,
    method: MethodOption = None,
    drafter: DrafterOption = None,
    strict: StrictFlag = False,
    settings: SetOption = None,
    verifier: VerifierOption = None,
    lossy: LossyFlag = False,
    draft_model: DraftModelsOption = None,
    draft_dtype: DraftDtypeOption = None,
    draft_device: DraftDeviceOption = None,
    head: HeadOption = None,
    online: OnlineFlag = False,
    nodes: NodesOption = None,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="FILE",
            parser=_file,
            help="begin with this memory if it exists; save it there now and then, and at the end",
            rich_help_panel="Drafting",
        ),
    ] = None,
    memory_strict: Annotated[
        bool,
        typer.Option(
            "--memory-strict",
            help="refuse to start with a --memory file that cannot be used, in place of learning without saving",
            rich_help_panel="Drafting",
        ),
    ] = False,
    corpus: Annotated[
        str | None,
        typer.Option(
            "--corpus",
            metavar="FILE",
            parser=_file,
            help="begin with this memory, such as one of `speculant corpus`, if --memory is not there yet; read only",
            rich_help_panel="Drafting",
        ),
    ] = None,
    base: BaseOption = None,
    no_base: NoBaseFlag = False,
    memory_limit: MemoryLimitOption = None,  # type: ignore[assignment]  # the settings' default
    memory_scope: Annotated[
        str | None,
        _text("--memory-scope", "NAME", "shared, the default, or key: a memory for each API key", "Drafting"),
    ] = None,
    save_seconds: Annotated[
        float | None, _seconds("--save-seconds", "between two savings of the memory; default: 300", "Drafting")
    ] = None,
    share: ShareOption = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    attention: AttentionOption = None,
    fast: FastOption = None,
    threads: ThreadsOption = None,
) -> int:
    """Load the model, and serve it until a signal comes."""
    check_packages(
        ("fastapi", "uvicorn", "pydantic_settings", "prometheus_client"), what="`speculant serve`", extra="serve"
    )
    if parameters:
        from speculant.serving.parameters import parameter_table

        print(parameter_table())
        return 0
    from speculant.serving.settings import load_settings

    serving = load_settings(
        {
            "host": host,
            "port": port,
            "api_keys": tuple(api_key) if api_key else None,
            "allow_no_key": allow_no_key or None,
            "cors_origins": tuple(cors_origin) if cors_origin else None,
            "log_format": log_format,
            "per_request_metrics": per_request_metrics or None,
            "max_concurrency": max_concurrency,
            "max_queue": max_queue,
            "prefix_cache": None if prefix_cache is None else prefix_cache << 20,
            "prompt_chunk": prompt_chunk,
            "max_new_tokens": max_new_tokens,
            "max_prompt_tokens": max_prompt_tokens,
            "max_body_bytes": max_body_bytes,
            "request_seconds": request_seconds,
            "drain_seconds": drain_seconds,
            "memory": memory,
            "memory_strict": memory_strict or None,
            "corpus": corpus,
            "base": named_bases(base, no_base=no_base),
            "memory_limit": None if memory_limit is None else memory_limit << 20,
            "memory_scope": memory_scope,
            "save_seconds": save_seconds,
        },
        config=config,
    )
    if method is None and head is None and drafter is None and serving.memory_scope == "key":
        method = DEFAULT_METHOD  # a head that comes with the model would unite with one memory for all
    drafting = Drafting(
        method=method,
        drafter=drafter,
        strict=strict,
        settings=tuple(settings or ()),
        nodes=nodes,
        memory_limit=serving.memory_limit >> 20,
        bases=None if serving.base is None else tuple(map(str, serving.base)),
        verifier=verifier,
        lossy=lossy,
        draft_models=tuple(draft_model or ()),
        draft_dtype=draft_dtype,
        draft_device=draft_device,
        head=head,
        online=online,
        share=share,
    )
    loading = Loading(model=model, dtype=dtype, device=device, attention=attention, fast=fast, threads=threads)
    return _serve(loading, drafting, serving, served_name)


def _serve(loading: Loading, drafting: Drafting, serving: ServingSettings, served_name: str | None) -> int:
    from speculant.cli.files import check_no_input, check_writable
    from speculant.cli.loading import check_drafting, check_named, load_speculator, model_name
    from speculant.cli.terminal import say, waiting
    from speculant.serving.logs import configure_logging
    from speculant.serving.server import bind, make_server, url

    named = check_drafting(drafting)
    check_named(loading, drafting)
    check_kept(named, drafting, serving)
    if serving.memory is not None:
        check_writable(str(serving.memory))
        check_no_input("--memory", serving.memory, [serving.corpus, *(serving.base or ())])
        if serving.memory_strict:
            check_memories(serving)
    if serving.memory_scope == "key" and drafting.share is not None:
        raise UsageError("--share would exchange what each key's memory learns. Leave it out, or --memory-scope.")
    with bind(serving) as bound:
        loaded = load_speculator(loading, drafting)
        configure_logging(serving.log_format)
        with waiting("starting the server"):
            from speculant.serving.app import create_app
        name = served_name or model_name(loading.model)
        app = create_app(loaded.speculator, serving, model=name, method_settings=loaded.settings)
        try:
            unused = list(app.state.unused_memories)
            server = make_server(app, serving, lambda: say(_block(loaded, serving, name, url(bound), unused=unused)))
            gc.freeze()  # the model's objects stay; a body of many values must not have them looked through each time
            server.run(sockets=[bound])
        finally:
            loaded.speculator.close()
    return 0


def check_kept(named: Method | None, drafting: Drafting, serving: ServingSettings) -> None:
    """Check before a model is loaded that the named method has the memory that is kept, and that a corpus is one.

    Raises:
        UnsupportedError: it keeps none.
        FileError, MemoryFileError: the corpus cannot be used.
    """
    given = serving.memory is not None or serving.corpus is not None
    if given and named is not None and not (named.keeps_memory or drafting.online):
        raise UnsupportedError(
            f"the method '{named.name}' keeps no memory; leave out --memory and --corpus, or use --method mix."
        )
    if serving.corpus is not None:
        read_header(serving.corpus)


def check_memories(serving: ServingSettings) -> None:
    """Check before a model is loaded that the files of memories, where there are any, are whole.

    Raises:
        FileError, MemoryFileError: one is not.
    """
    from speculant.memory.file import read_any_memory
    from speculant.serving.keys import tenant_name
    from speculant.serving.memory_keeper import tenant_path

    by_key = serving.memory_scope == "key"
    tenants = [tenant_name(key.get_secret_value()) for key in serving.api_keys] if by_key else [""]
    for tenant in tenants:
        path = tenant_path(Path(str(serving.memory)), tenant)
        if path.exists():
            read_any_memory(path)


def _block(loaded: Loaded, serving: ServingSettings, name: str, address: str, *, unused: Sequence[Path] = ()) -> str:
    """Return what is shown once requests are accepted."""
    keys = counted(len(serving.api_keys), "API key") if serving.api_keys else "no API key"
    memory = f"{serving.memory}, {serving.memory_scope}" if serving.memory else "not saved"
    if unused:
        memory = f"not saved: {', '.join(map(str, unused))} cannot be used and is left as it is"
    return "\n".join(
        [
            f"serving     {name} on {address} ({keys})",
            f"method      {loaded.speculator.method}, up to {serving.max_concurrency} requests together",
            f"memory      {memory}",
            f"threads     {loaded.threads}",
            f"API         {address}/v1, metrics at {address}/metrics, schema at {address}/openapi.json",
            f"page        {address}/ shows drafts being accepted; Ctrl-C ends",
        ]
    )
