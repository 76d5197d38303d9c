"""How far a benchmark is: a bar on a terminal, lines in a log, and a warning where it will take long."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from speculant.cli.terminal import Pace, duration, progress, say

if TYPE_CHECKING:
    from speculant.bench.suite.estimate import Progress

LONG = 600.0
EVERY = 30.0  # seconds between lines


@contextmanager
def shown(
    total: int, *, found: int = 0, expected: float | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[Progress], None]]:
    """Show progress over the items of a benchmark, on a terminal and in logs; warn where it will take long.

    Args:
        total: items in all.
        found: of them, those an earlier run completed.
        expected: the seconds that the rest is expected to take, if that is known.
        clock: returns seconds.

    Yields:
        A function that takes how far the run has come.
    """
    lines = Lines(total, found=found, clock=clock, silent=sys.stderr.isatty())
    if expected is not None:
        lines.warn(expected, "by the warm-up")
    with progress("decoding", total, "items") as bar:
        done = 0

        def advance(now: Progress) -> None:
            nonlocal done
            bar(now.done - done)
            if now.done > found:
                lines.advance(now.done - max(done, found))
            done = now.done

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
        self.warn(left, f"by the {pace.done} of {pace.total} items so far")
        if not self._silent and pace.seconds >= self._next:
            self._next = pace.seconds + EVERY
            say(f"{pace.done} of {pace.total} items, about {duration(left)} left.")

    def warn(self, left: float, reason: str) -> None:
        """Warn once where the rest will take long."""
        if not self._warned and left > LONG:
            self._warned = True
            say(
                f"warning: this will take about {duration(left)} more, {reason}. "
                "Ctrl-C ends it; the same command goes on from there. --limit and --trials make it shorter."
            )
