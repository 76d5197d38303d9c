"""Messages, status lines and progress bars, all on standard error."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from speculant.cli.heartbeat import heartbeat

if TYPE_CHECKING:
    from speculant.cli.bars import Bar

ERASE_LINE = "\r\033[K"
STEADY = 10.0  # seconds of work after the first unit before the time left is estimated


class Advance(Protocol):
    """Receives the number of further units done."""

    def __call__(self, units: int = 1, /) -> object: ...


def say(text: str) -> None:
    """Print a message to standard error."""
    print(text, file=sys.stderr, flush=True)


def takes_color(stream: TextIO) -> bool:
    """Return whether a stream supports colours: terminals do unless NO_COLOR is set; FORCE_COLOR forces them."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show what is being waited for: a status line on a terminal; in a log, lines if it takes long."""
    if not sys.stderr.isatty():
        with heartbeat(lambda seconds: f"{what}, {duration(seconds)} so far ..."):
            yield
        return
    print(f"{what} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print(ERASE_LINE, end="", file=sys.stderr, flush=True)


@contextmanager
def importing(what: str) -> Iterator[None]:
    """Import large packages with an immediate notice: no other thread can print it while a library is being mapped.

    Nothing is printed if they are already imported. Garbage collection is disabled meanwhile, which saves a tenth of
    the time: imports never become garbage before the process ends (`main`).
    """
    if ("torch" in sys.modules and "transformers" in sys.modules) or not gc.isenabled():
        yield
        return
    if not sys.stderr.isatty():
        say(f"loading {what} ...")
    gc.disable()
    try:
        with waiting(f"loading {what}"):
            yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def progress(what: str, total: int | None, unit: str, *, done: int = 0) -> Iterator[Advance]:
    """Show a progress bar with rate and time left on a terminal; in a log, lines if it takes long.

    Args:
        what: what is being done.
        total: total number of units; None if unknown.
        unit: "bytes", or the plural of the units.
        done: number of units that an earlier run completed.

    Yields:
        A function to call with the number of further units done.
    """
    if not sys.stderr.isatty():
        pace = Pace(total, found=done)
        with heartbeat(lambda _: f"{what}: {pace.line(unit)}"):
            yield pace.advance
        return
    from speculant.cli.bars import Bar

    bar: Bar
    with Bar(what, total, unit, done=done) as bar:
        yield bar.advance


class Pace:
    """Estimates the time left from the pace so far.

    Attributes:
        total, done: number of units in all (None if unknown) and so far.
    """

    def __init__(self, total: int | None, *, found: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the clock.

        Args:
            total: total number of units; None if unknown.
            found: number of units that an earlier run completed, which take no time.
            clock: returns seconds.
        """
        self.total, self.done = total, found
        self._found, self._clock, self._begin = found, clock, clock()
        self._first: tuple[int, float] | None = None  # units done in the first call, and its time

    def advance(self, units: int = 1, /) -> None:
        """Count units."""
        self.done += units
        if self._first is None:
            self._first = self.done, self._clock()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._begin

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the end; None if the total is unknown, or too little is done.

        Work before the first unit, such as compiling, is excluded once enough units have followed: a tenth of all
        units, or units for `STEADY` seconds, determine the pace.
        """
        if self.total is None or self._first is None or self.done <= self._found:
            return None
        left, (first, at) = max(0, self.total - self.done), self._first
        steady, measured = self._clock() - at, self.done - self._found
        if 10 * measured < self.total - self._found and (steady < STEADY or self.done == first):
            return None
        return left * steady / (self.done - first) if self.done > first else left * self.seconds / measured

    def line(self, unit: str) -> str:
        """Return the progress as text.

        Args:
            unit: "bytes", or the plural of the units.
        """
        done, total = (f"{n / 1e6:,.1f} MB" if unit == "bytes" else f"{n:,}" for n in (self.done, self.total or 0))
        counted_unit = unit.removesuffix("s") if (self.total or self.done) == 1 else unit
        words = [done, *([] if self.total is None else ["of", total]), *([] if unit == "bytes" else [counted_unit])]
        left = self.seconds_left
        return " ".join(words) + (f", about {duration(left)} left" if left is not None and round(left) else "")


def duration(seconds: float) -> str:
    """Return a duration as text, in at most its two largest units."""
    whole = max(0, round(seconds))
    if whole < 90:
        return count_noun(whole, "second")
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} minutes"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} hours {minutes} minutes" if minutes and hours < 10 else f"{hours} hours"


def count_noun(count: int, noun: str) -> str:
    """Return a number with its noun, such as "1 shard" and "2 shards"."""
    return f"{count:,} {noun if count == 1 else noun + 's'}"


def print_table(lines: Sequence[Sequence[str]], *, names: int = 1) -> None:
    """Print a table to standard output, at its natural width.

    Args:
        lines: the headings, then the rows.
        names: number of text columns on the left; numbers are right-aligned.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, heading in enumerate(lines[0]):
        table.add_column(Text(heading), justify="left" if place < names else "right", no_wrap=True)
    for line in lines[1:]:
        table.add_row(*map(Text, line))
    console = Console(highlight=False, no_color=not takes_color(sys.stdout), width=1 << 16)
    print_rendered(console, table)


def print_rendered(console: Any, renderable: Any) -> None:
    """Print a rich renderable without trailing spaces."""
    with console.capture() as captured:
        console.print(renderable)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()), flush=True)
