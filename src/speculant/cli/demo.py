"""`speculant demo`: shows in under a minute what drafting does, on the bundled model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from speculant.bench.demo import Answer, Measured

BAR = 24  # characters of a bar
INTRODUCTION = """\
A model normally computes one token per pass. With Speculant a drafter guesses the next few tokens and the model checks
them all in one pass: guesses that were right cost almost nothing, wrong ones are discarded. The text stays the same.

Everything here runs on one CPU thread with the bundled story model (5.5 million parameters), which is too small for
more threads. Each request is decoded without drafts and with them, by turns, {repetitions} times; times are medians."""
TITLES = {
    "session": "1. A session of ten stories: the memory is empty at first and learns from every answer",
    "edit": "2. An edit: most of the answer stands in the prompt",
    "corpus": "3. New stories, with a memory made from a corpus beforehand",
}
ROWS = {
    "session": "session of ten stories",
    "edit": "editing a story",
    "corpus": "stories, memory from a corpus",
}


def demo(*, json: Path | None = None) -> None:
    """Decode three kinds of requests with drafts and without, and show how long each took.

    Args:
        json: a file that gets everything measured; None for none.
    """
    from speculant.cli.env import environment
    from speculant.cli.options import quieten
    from speculant.cli.output import check_writable, write_json

    if json is not None:
        check_writable(str(json))
    quieten()
    import torch

    from speculant.api.loading import load_model
    from speculant.bench.demo import REPETITIONS, measure, plays, scenes

    torch.set_num_threads(1)
    console = Console(highlight=False)
    console.print(INTRODUCTION.format(repetitions=REPETITIONS), end="\n\n")
    model, tokenizer = load_model(None)
    chosen, found = scenes(), list[Measured]()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("decoding", total=plays(chosen))
        for scene in chosen:
            found.append(measure(scene, model, tokenizer, advance=lambda: progress.advance(bar)))
            console.print(scene_block(found[-1]), end="\n\n")
    console.print(summary(found))
    if json is not None:
        write_json(str(json), {"environment": environment(model), "scenes": [each.to_json() for each in found]})


def scene_block(measured: Measured) -> RenderableType:
    """Return a scene's title, the speed-up of each request, and one answer with its accepted drafts coloured."""
    parts: list[RenderableType] = [Text(TITLES[measured.scene.name], style="bold"), speed_ups(measured.answers)]
    if measured.scene.name == "edit":
        parts += [Text(), answer_text(measured.answers[0])]
    return Group(*parts)


def speed_ups(answers: Sequence[Answer]) -> Table:
    """Return a bar per request."""
    table = Table.grid(padding=(0, 1))
    longest = max(answer.speed_up for answer in answers)
    for answer in answers:
        length = max(1, round(BAR * answer.speed_up / longest))
        table.add_row(f"{answer.speed_up:5.2f}x", Text("█" * length, style="green"), shortened(answer.request.label))
    return table


def answer_text(answer: Answer) -> Text:
    """Return the answer; tokens that were guessed right are green."""
    text = Text(f"{answer.request.label} (green: guessed right)\n", style="bold")
    for part, accepted in answer.parts:
        text.append(part, style="not bold green" if accepted else "not bold")
    return text


def summary(found: Iterable[Measured]) -> Table:
    """Return the final table."""
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


def shortened(text: str, width: int = 60) -> str:
    """Return the text, or its beginning where it is long."""
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."
