"""How far a benchmark is: a bar on a terminal, lines in a log, and a warning where it will take long."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from speculant.cli.terminal import Advance, Pace, duration, progress, say

if TYPE_CHECKING:
    from speculant.bench.suite.rows import Row

LONG = 600.0
EVERY = 30.0  # seconds between lines
SHORT = 10.0


@contextmanager
def shown(total: int, *, found: int = 0, clock: Callable[[], float] = time.monotonic) -> Iterator[Advance]:
    """Show progress over the items of a benchmark, on a terminal and in logs.

    Args:
        total: items in all.
        found: of them, those an earlier run completed.
        clock: returns seconds.

    Yields:
        A function that takes how many more items are done.
    """
    lines = Lines(total, found=found, clock=clock, silent=sys.stderr.isatty())
    with progress("decoding", total, "items") as bar:

        def advance(items: int = 1) -> None:
            bar(items)
            lines.advance(items)

        yield advance


class Lines:
    """Prints what is done and how long the rest will take, now and then."""

    def __init__(
        self, total: int, *, found: int = 0, clock: Callable[[], float] = time.monotonic, silent: bool = False
    ) -> None:
        """Start the clock.

        Args:
            total, found: items in all, and of them those an earlier run completed.
            clock: returns seconds.
            silent: print only the warning, since a bar shows the rest.
        """
        self._pace = Pace(total, found=found, clock=clock)
        self._silent, self._warned, self._next = silent, False, EVERY

    def advance(self, items: int) -> None:
        """Count items."""
        pace = self._pace
        pace.advance(items)
        left = pace.seconds_left
        if left is None or not left:
            return
        if not self._warned and left > LONG:
            self._warned = True
            say(
                f"warning: this will take about {duration(left)} more, by the {pace.done} of {pace.total} items so "
                "far. Ctrl-C ends it; the same command goes on from there. --limit and --trials make it shorter."
            )
        if not self._silent and pace.seconds >= self._next:
            self._next = pace.seconds + EVERY
            say(f"{pace.done} of {pace.total} items, about {duration(left)} left.")


def short_trial(rows: Sequence[Row]) -> str:
    """Return a warning if a single trial of few seconds is all that figures rest on; empty if not."""
    seconds: dict[tuple[str, str, float, int], float] = {}
    for row in rows:
        key = row.task, row.method, row.temperature, row.batch
        seconds[key] = seconds.get(key, 0.0) + row.seconds
    shortest = min(seconds.values(), default=SHORT)
    if shortest >= SHORT:
        return ""
    return (
        f"One trial of {shortest:.1f} seconds decides: timings that short vary by tens of percent. Use --trials 3, or "
        "more items."
    )
