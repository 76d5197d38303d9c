"""What is shown beside the result: messages, status lines and progress bars, all on standard error."""

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
STEADY = 10.0  # seconds of work after the first unit, from which on the time left can be told


class Advance(Protocol):
    """Takes how many more units are done."""

    def __call__(self, units: int = 1, /) -> object: ...


def say(text: str) -> None:
    """Print a message to standard error."""
    print(text, file=sys.stderr, flush=True)


def takes_color(stream: TextIO) -> bool:
    """Return whether a stream takes colours: terminals do unless NO_COLOR is set; FORCE_COLOR forces them."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show what is being waited for: a status line on a terminal until it is done; in a log, lines if it takes long."""
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
    """Import large packages, and say so at once: no other thread can, while a library is being mapped.

    Nothing is said where they have been imported. Meanwhile no garbage is collected, a tenth of the time: what is
    imported is never garbage, until the process ends (`main`).
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
        total: how many units that takes; None if that is not known.
        unit: "bytes", or the plural of what is counted.
        done: how many of them an earlier run has done.

    Yields:
        A function that takes how many more units are done.
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
    """Estimates the time left from the time that the first units took.

    Attributes:
        total, done: units in all, None if that is not known, and so far.
    """

    def __init__(self, total: int | None, *, found: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the clock.

        Args:
            total: units in all; None if that is not known.
            found: of them, those an earlier run completed; they take no time.
            clock: returns seconds.
        """
        self.total, self.done = total, found
        self._found, self._clock, self._begin = found, clock, clock()
        self._first: tuple[int, float] | None = None  # units done with the first call, and when

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
        """Estimated seconds until the end; None where the total is not known, or too little is done to tell.

        What comes before the first unit, such as compiling, is left out where others have followed: a tenth of all
        units, or units for `STEADY` seconds, are the pace.
        """
        if self.total is None or self._first is None or self.done <= self._found:
            return None
        left, (first, at) = max(0, self.total - self.done), self._first
        steady, measured = self._clock() - at, self.done - self._found
        if 10 * measured < self.total - self._found and (steady < STEADY or self.done == first):
            return None
        return left * steady / (self.done - first) if self.done > first else left * self.seconds / measured

    def line(self, unit: str) -> str:
        """Return how far it is, in words.

        Args:
            unit: "bytes", or the plural of what is counted.
        """
        done, total = (f"{n / 1e6:,.1f} MB" if unit == "bytes" else f"{n:,}" for n in (self.done, self.total or 0))
        counted_unit = unit.removesuffix("s") if (self.total or self.done) == 1 else unit
        words = [done, *([] if self.total is None else ["of", total]), *([] if unit == "bytes" else [counted_unit])]
        left = self.seconds_left
        return " ".join(words) + (f", about {duration(left)} left" if left is not None and round(left) else "")


def duration(seconds: float) -> str:
    """Return a time in words, in its two largest units at most."""
    whole = max(0, round(seconds))
    if whole < 90:
        return count_noun(whole, "second")
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} minutes"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} hours {minutes} minutes" if minutes and hours < 10 else f"{hours} hours"


def count_noun(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun, such as "1 shard" and "2 shards"."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


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
    console = Console(highlight=False, no_color=not takes_color(sys.stdout), width=1 << 16)
    print_rendered(console, table)


def print_rendered(console: Any, renderable: Any) -> None:
    """Print what rich renders, without spaces at the ends of lines."""
    with console.capture() as captured:
        console.print(renderable)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()), flush=True)
