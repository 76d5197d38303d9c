"""How long work on a corpus tells what it is doing; the command line's terminal is one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol


class Console(Protocol):
    """Where messages and progress go."""

    def say(self, message: str) -> None:
        """Show a message."""

    def progress(
        self, what: str, total: int | None, unit: str, *, done: int = 0
    ) -> AbstractContextManager[Callable[[int], object]]:
        """Show the progress of some work; the context takes how many more units are done.

        Args:
            what: the work.
            total: units in all; None if that is not known.
            unit: "bytes", or the plural of what is counted.
            done: units that an earlier run has done.
        """
