"""Stop strings: where a text ends, and how much of it may be sent before that is known."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Passes text on up to the first stop string, which is excluded as in OpenAI's API.

    Text that may be the beginning of a stop string is held back until the next text shows whether it is.

    Attributes:
        stopped: whether a stop string was found.
        rest: the text after it so far.
        found: the stop string that was found, or None.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Set the stop strings, none of which may be empty."""
        self._stops = tuple(stops)
        self._held = ""
        self.stopped, self.rest = False, ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Add text; return the text that may be sent now."""
        if not self._stops:
            return text
        if self.stopped:
            self.rest += text
            return ""
        text = self._held + text
        places = [(place, len(stop)) for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            place, length = min(places)
            self.stopped, self._held, self.rest = True, "", text[place + length :]
            self.found = text[place : place + length]
            return text[:place]
        kept = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def flush(self) -> str:
        """Return the text that was held back, at the end of the text."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of a text that is a prefix of a stop string."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
