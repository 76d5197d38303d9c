"""Shows a training: a bar on a terminal, lines elsewhere, a line for every measurement, and the result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.cli.heartbeat import heartbeat
from speculant.cli.terminal import duration, say

if TYPE_CHECKING:
    from speculant.training.progress import Progress
    from speculant.training.settings import TrainSettings


@contextmanager
def show_training(settings: TrainSettings) -> Iterator[Callable[[Progress], None]]:
    """Show the progress of a training.

    Yields:
        A function to call with the progress.
    """
    if not sys.stderr.isatty():
        latest = "preparing the texts"

        def lines(now: Progress) -> None:
            nonlocal latest
            latest = line(now, settings)
            if now.acceptance is not None:
                say(latest)

        with heartbeat(lambda _: latest):
            yield lines
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("training"), BarColumn(bar_width=24), TaskProgressColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("", total=1.0)

        def draw(now: Progress) -> None:
            left = f", {duration(now.seconds_left)} left" if now.seconds_left is not None else ""
            rate = f"{now.tokens_per_second:,.0f} tokens/s"
            bar.update(task, completed=now.done, description=f"{loss_by_depth(now)}, {rate}{left}")
            if now.acceptance is not None:
                console.print(line(now, settings))

        yield draw


def line(now: Progress, settings: TrainSettings) -> str:
    """Return the progress as one line."""
    total = f" of {settings.steps}" if settings.steps else ""
    parts = [f"step {now.step}{total}", loss_by_depth(now)]
    if now.acceptance is not None:
        agreed = " ".join(f"{rate:.3f}" for rate in now.acceptance.agreement)
        best = ", best so far" if now.best else ""
        parts.append(f"agreement {agreed} (chain of {now.acceptance.greedy:.2f} tokens{best})")
    parts.append(f"{now.tokens_per_second:,.0f} tokens/s")
    if now.seconds_left is not None and now.done < 1:
        parts.append(f"{duration(now.seconds_left)} left")
    return "  ".join(parts)


def loss_by_depth(now: Progress) -> str:
    """Return the losses by draft depth; a dash if none was trained since the last measurement."""
    named = "loss" if len(now.losses) == 1 else f"loss at depths 1 to {len(now.losses)}:"
    return " ".join([named, *(f"{loss:.3f}" if loss else "-" for loss in now.losses)])


def summarize_training(record: Mapping[str, Any], noun: str, place: Path) -> list[str]:
    """Return lines about a finished training.

    Args:
        record: contents of its `training.json`.
        noun: what was trained.
        place: its folder.
    """
    best, lines = record["best"], [f"{noun:<12}{place}"]
    if "joint" in record:
        changes = record["joint"]
        lines.append(f"model       {place / 'model'}: a tuned copy, whose output the head keeps")
        lines.append(
            f"change      {changes['kl']:.4f} nats of KL from the original, {changes['agreement']:.1%} equal most "
            f"probable tokens, perplexity {changes['perplexity_tuned']:.3f} instead of {changes['perplexity']:.3f}"
        )
    return [
        *lines,
        f"best        step {best['step']} of {record['steps']}, {record['seconds'] / 60:.1f} minutes",
        f"acceptance  {' '.join(format(rate, '.3f') for rate in best['agreement'])} by depth, greedy",
        f"chain       {best['greedy']:.2f} tokens per round greedy, {best['sampled']:.2f} sampled (estimated)",
    ]
