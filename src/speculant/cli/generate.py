"""`speculant generate`: continues one prompt or many, and reports the speed."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from speculant.cli.binding import Take, bind
from speculant.cli.commands import Command
from speculant.cli.generate_settings import GenerateOptions
from speculant.cli.terminal import importing, say
from speculant.core.errors import FileError, UnsupportedError, UsageError
from speculant.options.drafting import DraftingOptions
from speculant.options.model import ModelOptions
from speculant.options.sampling import ConstraintOptions, SamplingOptions

HELP = """\
Continue a prompt.

The text is written to standard output while it is generated, everything else to standard error. Ctrl-C ends the text
early; what was learned is still saved. With --prompts and output to a file or pipe, each prompt's text is a line of
JSON."""

EXAMPLES = """
speculant generate "Once upon a time" --compare   # is drafting faster here?
speculant generate - --temperature 0.8 --seed 1 < prompt.txt
speculant generate "The dog" --memory my.speculant  # learns from run to run
speculant generate --prompts questions.jsonl --batch 8 > answers.jsonl
speculant generate "Tom" --method lookup --set copied=20
speculant generate "Tom" --model your/model --head your/head
speculant generate "What is this?" --model your/model --image photo.jpg
speculant generate "The dog as JSON: " --json-schema dog.json
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("generate", cls=Command, help=HELP, epilog=EXAMPLES)(bind(generate))


def generate(
    options: Annotated[GenerateOptions, Take(arguments={"prompt": "PROMPT"})],
    sampling: SamplingOptions,
    constraint: ConstraintOptions,
    drafting: DraftingOptions,
    model: ModelOptions,
) -> int:
    """Decode every prompt; report, record and save the results in any case."""
    from speculant.cli.files import JSON, check_result
    from speculant.cli.generation import PromptRun
    from speculant.cli.loading import load_speculator
    from speculant.cli.loading_checks import check_drafting, check_memory, check_named
    from speculant.cli.prompts import read_prompt_argument, read_prompts, single_turns

    media = media_parts(options)
    if options.compare:
        sampling = fix_seed(sampling, constraint)
    check_memory(drafting, [options.prompts])
    check_result("--json", options.json, JSON, [options.prompts, drafting.memory])
    prompts = [read_prompt_argument(str(options.prompt))] if options.prompts is None else read_prompts(options.prompts)
    together = single_turns(prompts) if options.batch > 1 else []
    check_drafting(drafting)
    check_named(model, drafting)
    keywords = sampling.keywords() | constraint_keywords(constraint)
    loaded = load_speculator(model, drafting)
    run = PromptRun(loaded, keywords, options, media=media)
    with ExitStack() as ending:  # callbacks run last to first, each even if another fails
        ending.callback(loaded.speculator.close)
        if loaded.memory is not None:
            ending.callback(run.remember)
        if options.json is not None:
            ending.callback(run.record)
        ending.callback(run.report)
        if options.batch > 1:
            run.decode_batch(together, options.batch)
        elif options.compare:
            run.compare(prompts, memory_limit=drafting.memory_limit)
        else:
            run.decode(prompts)
    return 0


def fix_seed(sampling: SamplingOptions, constraint: ConstraintOptions) -> SamplingOptions:
    """Return the options of texts that are decoded in several ways: with a seed if they are sampled.

    Raises:
        UsageError: they are constrained, which transformers' own decoding cannot be.
    """
    if constraint != ConstraintOptions():
        raise UsageError("--compare also runs transformers, which has no --json-schema and --regex; leave one out.")
    if not sampling.temperature or sampling.seed is not None:
        return sampling
    say("note: to compare, every run must draw the same random numbers; --seed 0 is used.")
    return replace(sampling, seed=0)


def media_parts(options: GenerateOptions) -> tuple[dict[str, str], ...]:
    """Return the parts of a chat message for what is placed before the prompt; see `api.media_prompts`.

    Raises:
        FileError: there is no such file. Nothing is loaded to check this.
    """
    named = [("image", name) for name in options.image] + [("audio", name) for name in options.audio]
    for kind, name in named:
        if not Path(name).is_file():
            raise FileError(f"--{kind}: there is no file {name}.")
    return tuple({"type": kind, kind: name} for kind, name in named)


def constraint_keywords(options: ConstraintOptions) -> dict[str, object]:
    """Return the keywords of `Speculator.stream` for what the text must look like: a constraint, or nothing.

    Raises:
        FileError: the file of a schema cannot be read.
        UnsupportedError: llguidance is not installed.
        UsageError: both kinds of constraints are given, or one is not valid.
    """
    if options.json_schema is not None and options.regex is not None:
        raise UsageError("--json-schema and --regex both constrain the text; leave one out.")
    if options == ConstraintOptions():
        return {}
    if find_spec("llguidance") is None:
        raise UnsupportedError("--json-schema and --regex need llguidance: pip install 'speculant[structured]'.")
    schema = None if options.json_schema is None else read_schema(Path(options.json_schema))
    with importing("PyTorch"):
        from speculant.api.constraints import Constraint, check_constraint
    text = options.regex or ""
    constraint = Constraint.regex(text) if schema is None else Constraint.json_schema(schema, compact=True)
    check_constraint(constraint)
    return {"constraint": constraint}


def read_schema(path: Path) -> str:
    """Return the text of a schema file.

    Raises:
        FileError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise FileError(f"cannot read the JSON schema in {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise FileError(f"the JSON schema in {path} is not UTF-8 text.") from error
