"""How far a training is: a bar on a terminal, lines elsewhere, a line for every measurement on both."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from speculant.cli.terminal import duration, say

if TYPE_CHECKING:
    from speculant.training.settings import TrainSettings
    from speculant.training.trainer import Progress

EVERY = 30.0  # seconds between lines where nothing is measured


@contextmanager
def shown(
    settings: TrainSettings, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[Progress], None]]:
    """Show the progress of a training.

    Yields:
        A function that takes it.
    """
    last = clock()
    if not sys.stderr.isatty():

        def lines(now: Progress) -> None:
            nonlocal last
            if now.acceptance is not None or clock() - last >= EVERY:
                last = clock()
                say(line(now, settings))

        yield lines
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress as Bar, TaskProgressColumn, TextColumn

    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("training"), BarColumn(bar_width=24), TaskProgressColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("", total=1.0)

        def draw(now: Progress) -> None:
            left = f", {duration(now.seconds_left)} left" if now.seconds_left == now.seconds_left else ""
            losses = " ".join(f"{loss:.3f}" for loss in now.losses)
            bar.update(
                task, completed=now.done, description=f"loss {losses}, {now.tokens_per_second:,.0f} tokens/s{left}"
            )
            if now.acceptance is not None:
                console.print(line(now, settings))

        yield draw


def line(now: Progress, settings: TrainSettings) -> str:
    """Return the progress in a line."""
    total = f" of {settings.steps}" if settings.steps else ""
    parts = [f"step {now.step}{total}", "loss " + " ".join(f"{loss:.3f}" for loss in now.losses)]
    if now.acceptance is not None:
        agreed = " ".join(f"{rate:.3f}" for rate in now.acceptance.agreement)
        parts.append(f"agreement {agreed} (chain {now.acceptance.greedy:.2f}){' *' if now.best else ''}")
    parts.append(f"{now.tokens_per_second:,.0f} tokens/s")
    if now.seconds_left == now.seconds_left and now.done < 1:
        parts.append(f"{duration(now.seconds_left)} left")
    return "  ".join(parts)
