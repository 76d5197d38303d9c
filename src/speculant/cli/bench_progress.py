"""The progress of a benchmark, and a warning if it will take long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from speculant.cli.terminal import Pace, duration, progress, say

if TYPE_CHECKING:
    from speculant.bench.suite.estimate import RunProgress

LONG = 600.0


@contextmanager
def show_progress(
    total: int, *, found: int = 0, expected: float | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[RunProgress], None]]:
    """Show progress over the items of a benchmark, on a terminal and in logs; warn if it will take long.

    Args:
        total: total number of items.
        found: number of items that an earlier run completed.
        expected: expected seconds of the rest, if known.
        clock: returns seconds.

    Yields:
        A function to call with the progress of the run.
    """
    warning = LongRun(total, found=found, clock=clock)
    if expected is not None:
        warning.warn(expected, "by the warm-up")
    with progress("decoding", total, "items", done=found) as bar:
        done = found

        def advance(now: RunProgress) -> None:
            nonlocal done
            if now.done > done:
                bar(now.done - done)
                warning.advance(now.done - done)
                done = now.done

        yield advance


class LongRun:
    """Warns once if the rest will take long."""

    def __init__(self, total: int, *, found: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the clock.

        Args:
            total, found: number of items in all, and of those that an earlier run completed.
            clock: returns seconds.
        """
        self._pace, self._warned = Pace(total, found=found, clock=clock), False

    def advance(self, items: int) -> None:
        """Count items."""
        self._pace.advance(items)
        if left := self._pace.seconds_left:
            self.warn(left, f"by the {self._pace.done} of {self._pace.total} items so far")

    def warn(self, left: float, reason: str) -> None:
        """Warn once if `left` is a long time in seconds."""
        if not self._warned and left > LONG:
            self._warned = True
            say(
                f"warning: this will take about {duration(left)} more, {reason}. "
                "Ctrl-C ends it; the same command continues from there. Use --limit or --trials to shorten it."
            )
