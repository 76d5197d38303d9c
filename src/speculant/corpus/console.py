"""The interface by which long corpus work reports its progress, implemented by the command line's terminal."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol


class Console(Protocol):
    """Shows messages and progress."""

    def say(self, message: str) -> None:
        """Show a message."""

    def progress(
        self, what: str, total: int | None, unit: str, *, done: int = 0
    ) -> AbstractContextManager[Callable[[int], object]]:
        """Show the progress of some work; the context yields a function for the number of further units done.

        Args:
            what: description of the work.
            total: total number of units; None if unknown.
            unit: "bytes", or the plural of the units.
            done: number of units done by an earlier run.
        """
