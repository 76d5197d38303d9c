"""Calls in the format of Hermes and Qwen: a JSON object between `<tool_call>` and `</tool_call>`."""

from __future__ import annotations

import json

from speculant.serving.call_readers import Reading, decode, read_call
from speculant.serving.call_values import Schemas

BEGIN, END = "<tool_call>", "</tool_call>"


class ObjectEnd:
    """Finds the end of a JSON object in streamed text.

    Attributes:
        ended: whether the object has ended.
        quoted: whether the text so far ends within a string.
    """

    def __init__(self) -> None:
        self.ended, self.quoted = False, False
        self._depth, self._escaped = 0, False

    def take(self, text: str) -> int:
        """Add text; return how many of its characters belong to the object."""
        if self.ended:
            return 0
        for place, symbol in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self.quoted:
                self.quoted, self._escaped = symbol != '"', symbol == "\\"
            elif symbol == '"':
                self.quoted = True
            else:
                self._depth += (symbol in "{[") - (symbol in "}]")
                if not self._depth:
                    self.ended = True
                    return place + 1
        return len(text)


def _end_of(text: str) -> int:
    """Return the position of the mark that ends a call, or -1; marks within a JSON string are ignored."""
    place, begin = text.find(END), text.find("{")
    while place >= 0:
        reading = ObjectEnd()
        reading.take(text[begin:place] if 0 <= begin < place else "")
        if not reading.quoted:
            return place
        place = text.find(END, place + 1)
    return -1


def read_hermes(text: str, final: bool, _schemas: Schemas) -> Reading:
    """Read a call; at the end of an answer, models may leave out the mark that ends it."""
    place = _end_of(text)
    if place < 0:
        value = read_call(decode(text, True)[0]) if final else None
        return None if value is None else (len(text), [value])
    try:
        call = read_call(json.loads(text[:place]))
    except (ValueError, RecursionError):
        call = None
    return place + len(END), [] if call is None else [call]
