"""Log lines during long work: without a terminal, nothing else would show that a command is alive."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FIRST, GAP, SHARE, MAXIMUM = 1.0, 1.5, 0.1, 30.0


def beats() -> Iterator[float]:
    """Yield the seconds after which lines are due: frequent at first, then after each tenth of the elapsed time."""
    due = FIRST
    while True:
        yield due
        due += min(MAXIMUM, max(GAP, SHARE * due))


@contextmanager
def heartbeat(describe: Callable[[float], str | None]) -> Iterator[None]:
    """Print lines to standard error until the context ends; none if it ends within a second.

    Args:
        describe: called with the elapsed seconds, in a thread; returns the line, or None for none.
    """
    begin, ended = time.monotonic(), threading.Event()

    def beat() -> None:
        for due in beats():
            if ended.wait(max(0.0, begin + due - time.monotonic())):
                return
            if (line := describe(time.monotonic() - begin)) is not None:
                print(line, file=sys.stderr, flush=True)

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
