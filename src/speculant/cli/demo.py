"""`speculant demo`: shows the effect of drafting in a minute or two, on the bundled model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from speculant.cli.binding import bind
from speculant.cli.commands import Command
from speculant.options import kinds, option

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from speculant.bench.demo import DemoAnswer, Measured

HELP = """\
Show in about a minute what drafting does, on the bundled model. The first run also compiles kernels, up to a minute.

It decodes a session whose memory fills, an edit, and stories with a base that already knows the language, each with and
without drafts."""
EXAMPLES = """
speculant demo
speculant demo --json demo.json   # everything measured
"""

BAR = 20  # characters of a bar
INTRODUCTION = (
    "A model normally computes one token per pass. With Speculant a drafter guesses the next few tokens and the model "
    "checks them all in one pass: right guesses save passes, wrong ones are discarded. The text stays the same.\n\n"
    "Everything here runs on one CPU thread with the bundled story model; at 5.5 million parameters it is too small "
    "for more threads. Each request is decoded without drafts and with them, by turns, {repetitions} times; times are "
    "medians.\n"
)
TITLES = {
    "session": "1. A session of ten stories: the memory starts empty and fills as it goes",
    "edit": "2. An edit: most of the answer is in the prompt",
    "base": "3. New stories, with a base that already knows the language",
}
ROWS = {
    "session": "session of ten stories",
    "edit": "editing a story",
    "base": "stories, with a base",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """Where the measurements go."""

    json: str | None = option.option(None, "also write all measurements to this file", kinds.FILE_NAME)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo", cls=Command, help=HELP, epilog=EXAMPLES)(bind(demo))


def demo(options: DemoOptions) -> int:
    """Decode three kinds of requests with and without drafts, and print the speeds."""
    from rich.console import Console

    from speculant.cli.compiling import compilation_announced
    from speculant.cli.env import environment
    from speculant.cli.files import JSON, check_result, write_json
    from speculant.cli.loading import load
    from speculant.cli.terminal import progress
    from speculant.options.model import ModelOptions

    check_result("--json", options.json, JSON)
    console = Console(highlight=False)
    model, tokenizer, _ = load(ModelOptions(device="cpu", threads=1))
    from speculant.bench.demo import REPETITIONS, measure, plays, scenes

    console.print(INTRODUCTION.format(repetitions=REPETITIONS))
    chosen, found = scenes(), []
    with compilation_announced(), progress("decoding", plays(chosen), "requests") as advance:
        for scene in chosen:
            found.append(measure(scene, model, tokenizer, advance=lambda: advance(1)))
            console.print(scene_block(found[-1]))
            console.print()
    console.print(summary(found))
    if options.json is not None:
        write_json(options.json, {"environment": environment(model), "scenes": [each.to_json() for each in found]})
    return 0


def scene_block(measured: Measured) -> RenderableType:
    """Return a scene's title, the speed-up of each request, and one answer with coloured accepted drafts."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(TITLES[measured.scene.name], style="bold"), speed_ups(measured.answers)]
    if measured.scene.name == "edit":
        parts += [Text(), answer_text(measured.answers[0])]
    return Group(*parts)


def speed_ups(answers: Sequence[DemoAnswer]) -> Table:
    """Return one bar per request."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    longest = max(answer.speed_up for answer in answers)
    for answer in answers:
        length = max(1, round(BAR * answer.speed_up / longest))
        table.add_row(f"{answer.speed_up:5.2f}x", Text("█" * length, style="green"), shorten_text(answer.request.label))
    return table


def answer_text(answer: DemoAnswer) -> Text:
    """Return the answer with accepted drafts in green."""
    from rich.text import Text

    text = Text(f"{answer.request.label} (green: guessed right)\n")
    for part, accepted in answer.parts:
        text.append(part, style="green" if accepted else "")
    return text


def summary(found: Iterable[Measured]) -> Table:
    """Return the final table."""
    from rich.table import Table

    table = Table("", title="tokens per second", title_justify="left")
    for name in ("plain", "drafted", "speed-up", "identical"):
        table.add_column(name, justify="right")
    for measured in found:
        table.add_row(
            ROWS[measured.scene.name],
            f"{measured.plain_speed:.0f}",
            f"{measured.drafted_speed:.0f}",
            f"{measured.speed_up:.2f}x",
            "yes" if measured.identical else "no",
        )
    return table


def shorten_text(text: str, width: int = 48) -> str:
    """Return the text, truncated if it is long."""
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."
