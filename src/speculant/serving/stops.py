"""Stop strings: where the text ends, and how much of it may be sent before that is known."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Passes text on up to the first stop string, which is left out as in OpenAI's API.

    Text that may be the beginning of a stop string is held back until the next text shows whether it is.

    Attributes:
        stopped: whether a stop string was found.
        rest: what followed it so far.
        found: it, None where none was found.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Take the stop strings, none of them empty."""
        self._stops = tuple(stops)
        self._held = ""
        self.stopped, self.rest = False, ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Add text; return what may be sent now."""
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
        """Return what was held back, at the end of the text."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of a text that a stop string begins with."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
