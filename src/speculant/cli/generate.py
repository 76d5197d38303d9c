"""`speculant generate`: continues one prompt or many, and reports the speed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from speculant.cli.binding import bind, parse
from speculant.cli.commands import Command
from speculant.core.errors import FileError, UsageError
from speculant.options import kinds
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
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="text to continue; - reads standard input")
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help="many prompts: .jsonl rows or a .json list of texts, of objects with prompt, question or turns, or of "
            "chat messages; any other file is read as one prompt a line",
        ),
    ] = None,
    batch: Annotated[
        int,
        typer.Option(
            "--batch", metavar="N", parser=parse(kinds.whole(1)), help="with --prompts: decode up to N at a time"
        ),
    ] = 1,
    chat: Annotated[
        bool, typer.Option("--chat", help="send the prompt as a user message, in the model's chat template")
    ] = False,
    image: Annotated[
        list[str] | None,
        typer.Option(
            "--image", metavar="FILE", help="image to put before the prompt, as a chat message; may be repeated"
        ),
    ] = None,
    audio: Annotated[
        list[str] | None,
        typer.Option(
            "--audio", metavar="FILE", help="recording to put before the prompt; may be repeated, like --image"
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="also decode without drafts, in turns: speed-up, and same tokens?")
    ] = False,
    color: Annotated[
        bool, typer.Option("--color", help="color tokens on a terminal by their origin; NO_COLOR disables it")
    ] = False,
    json: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="write the result as JSON; - prints it instead of the text"),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="report times, drafts, sizes and threads")] = False,
    *,
    sampling: SamplingOptions,
    constraint: ConstraintOptions,
    drafting: DraftingOptions,
    model: ModelOptions,
) -> int:
    """Decode every prompt; report, record and save the results in any case."""
    from speculant.cli.constraining import constraint_options
    from speculant.cli.files import JSON, check_no_input, check_result, check_writable
    from speculant.cli.generation import Output, PromptRun
    from speculant.cli.loading import load_speculator
    from speculant.cli.loading_checks import check_drafting, check_named
    from speculant.cli.painting import can_paint
    from speculant.cli.prompts import read_prompt_argument, read_prompts, single_turns
    from speculant.cli.terminal import say

    if (prompt is None) == (prompts is None):
        raise UsageError("give either a PROMPT (- reads standard input) or a file of prompts by --prompts.")
    media = _media_parts(image, audio)
    if media and (prompts is not None or compare):
        raise UsageError("--image and --audio are for one PROMPT, without --compare.")
    if batch > 1 and (prompts is None or compare or color):
        raise UsageError("--batch is for --prompts, without --compare and --color; `speculant bench --batch` compares.")
    if compare and constraint != ConstraintOptions():
        raise UsageError("--compare also runs transformers, which has no --json-schema and --regex; leave one out.")
    if compare and sampling.temperature and sampling.seed is None:
        say("note: to compare, every run must draw the same random numbers; --seed 0 is used.")
        sampling = replace(sampling, seed=0)
    memory = drafting.memory
    if memory is not None:
        check_writable(memory)
        check_no_input("--memory", memory, [prompts])
    check_result("--json", json, JSON, [prompts, memory])
    asked = [read_prompt_argument(prompt)] if prompt is not None else read_prompts(str(prompts))
    together = single_turns(asked) if batch > 1 else []
    output = Output(
        many=prompts is not None, json=json, color=can_paint(color), verbose=verbose, chat=chat, media=media
    )
    check_drafting(drafting)
    check_named(model, drafting)
    options = sampling.keywords() | constraint_options(constraint.json_schema, constraint.regex)
    loaded = load_speculator(model, drafting)
    generation = PromptRun(loaded, options, output)
    with ExitStack() as ending:  # callbacks run last to first, each even if another fails
        ending.callback(loaded.speculator.close)
        if loaded.memory is not None:
            ending.callback(generation.remember)
        if json is not None:
            ending.callback(generation.record)
        ending.callback(generation.report)
        if batch > 1:
            generation.decode_batch(together, batch)
        elif compare:
            generation.compare(asked, memory_limit=drafting.memory_limit)
        else:
            generation.decode(asked)
    return 0


def _media_parts(images: Sequence[str] | None, recordings: Sequence[str] | None) -> tuple[dict[str, str], ...]:
    """Return the parts of a chat message for what is placed before the prompt; see `api.media_prompts`.

    Raises:
        FileError: there is no such file. Nothing is loaded to check this.
    """
    named = [("image", name) for name in images or ()] + [("audio", name) for name in recordings or ()]
    for kind, name in named:
        if not Path(name).is_file():
            raise FileError(f"--{kind}: there is no file {name}.")
    return tuple({"type": kind, kind: name} for kind, name in named)
