"""Reports unusable parts of a corpus: shown for the first files and rows, counted for all."""

from __future__ import annotations

from collections.abc import Callable

MAX_SHOWN = 20


class Rejected:
    """Shows why the first files and rows cannot be used, and counts them all.

    Attributes:
        count: number of unusable files and rows.
    """

    def __init__(self, say: Callable[[str], object]) -> None:
        """Start with none.

        Args:
            say: shows a message.
        """
        self.count, self._say = 0, say

    def __call__(self, message: str) -> None:
        """Receive a message."""
        self.count += 1
        if self.count <= MAX_SHOWN:
            self._say(f"warning: {message}")
        elif self.count == MAX_SHOWN + 1:
            self._say("warning: there are more of these; they are counted only.")
