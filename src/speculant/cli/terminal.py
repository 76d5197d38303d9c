"""What is shown beside the result: messages, status lines and progress bars, all on standard error."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from speculant.cli.bars import Bar

ERASE_LINE = "\r\033[K"


class Advance(Protocol):
    """Takes how many more units are done."""

    def __call__(self, units: int = 1, /) -> object: ...


def say(text: str) -> None:
    """Print a message to standard error."""
    print(text, file=sys.stderr, flush=True)


def colored(stream: TextIO) -> bool:
    """Return whether a stream takes colours: terminals do unless NO_COLOR is set; FORCE_COLOR forces them."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show on a terminal what is being waited for, until it is done."""
    if not sys.stderr.isatty():
        yield
        return
    print(f"{what} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print(ERASE_LINE, end="", file=sys.stderr, flush=True)


@contextmanager
def progress(what: str, total: int | None, unit: str, *, done: int = 0) -> Iterator[Advance]:
    """Show a progress bar with rate and time left on a terminal, nothing elsewhere.

    Args:
        what: what is being done.
        total: how many units that takes; None if that is not known.
        unit: "bytes", or the plural of what is counted.
        done: how many of them an earlier run has done.

    Yields:
        A function that takes how many more units are done.
    """
    if not sys.stderr.isatty():
        yield lambda _units=1: None
        return
    from speculant.cli.bars import Bar

    bar: Bar
    with Bar(what, total, unit, done=done) as bar:
        yield bar.advance


class Pace:
    """Estimates the time left from the time that the first units took.

    Attributes:
        total, done: units in all and so far.
    """

    def __init__(self, total: int, *, found: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the clock.

        Args:
            total: units in all.
            found: of them, those an earlier run completed; they are counted first and take no time.
            clock: returns seconds.
        """
        self.total, self.done = total, 0
        self._found, self._clock, self._begin = found, clock, clock()

    def advance(self, units: int) -> None:
        """Count units."""
        self.done += units

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._begin

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the end; None before the first unit was done."""
        measured = self.done - self._found
        return (self.total - self.done) * self.seconds / measured if measured > 0 else None


def duration(seconds: float) -> str:
    """Return a time in words, in its two largest units at most."""
    if seconds < 90:
        return f"{seconds:.0f} seconds" if round(seconds) != 1 else "1 second"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} minutes"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} hours {minutes} minutes" if minutes and hours < 10 else f"{hours} hours"


def print_table(lines: Sequence[Sequence[str]], *, names: int = 1) -> None:
    """Print a table to standard output, as wide as it needs to be.

    Args:
        lines: the headings, then the rows.
        names: how many columns of words stand to the left; numbers are aligned to the right.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, heading in enumerate(lines[0]):
        table.add_column(Text(heading), justify="left" if place < names else "right", no_wrap=True)
    for line in lines[1:]:
        table.add_row(*map(Text, line))
    console = Console(highlight=False, no_color=not colored(sys.stdout), width=1 << 16)
    print_rendered(console, table)


def print_rendered(console: Any, renderable: Any) -> None:
    """Print what rich renders, without spaces at the ends of lines."""
    with console.capture() as captured:
        console.print(renderable)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()), flush=True)


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import large packages without collecting garbage, a tenth of the time; what is imported is never garbage."""
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
