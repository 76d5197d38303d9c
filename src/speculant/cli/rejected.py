"""What of a corpus cannot be used: printed for the first files and rows, counted for all."""

from __future__ import annotations

from speculant.cli.terminal import say

SHOWN = 20


class Rejected:
    """Prints why the first files and rows cannot be used, and counts them all."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, message: str) -> None:
        """Take a message."""
        self.count += 1
        if self.count <= SHOWN:
            say(f"warning: {message}")
        elif self.count == SHOWN + 1:
            say("warning: there are more of these; they are counted only.")
