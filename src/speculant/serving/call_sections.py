"""Readers of tool calls as JSON between marks: lists or several objects, and objects after a function's name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from speculant.serving.call_readers import Call, Reading, decode, dump, read_call
from speculant.serving.call_values import Schemas


@dataclass(frozen=True, slots=True)
class JsonSection:
    """Reads calls as one list, or as objects one after another.

    Attributes:
        end: the mark after them, which may be missing; "" if there is none, and only one value is read.
        head: a mark before them, which may be missing.
        keyed: whether a call is an object whose only key is the tool's name, and the value its arguments.
    """

    end: str = ""
    head: str = ""
    keyed: bool = False

    def __call__(self, text: str, final: bool, schemas: Schemas) -> Reading:
        """Read a section."""
        place, calls = 0, list[Call]()
        while True:
            rest = text[place:].lstrip()
            begin = len(text) - len(rest)
            if calls and self.end and rest.startswith(self.end):
                return begin + len(self.end), calls
            expected = self.end if calls else self.head
            if not final and len(rest) < len(expected) and expected.startswith(rest):
                return None
            if not calls and self.head:
                rest = rest.removeprefix(self.head).lstrip()
                begin = len(text) - len(rest)
            if not rest.startswith(("{", "[")):
                return None if not rest and not final else (place, calls)
            value, length = decode(rest, final, before=self.end)
            if not length:
                return (place, calls) if final and calls else None
            found = [self._call(each, schemas) for each in (value if isinstance(value, list) else [value])]
            if not found or None in found:
                return (place, calls) if calls else (begin + length, [])
            calls += [call for call in found if call is not None]
            place = begin + length
            if not self.end:
                return place, calls

    def _call(self, value: Any, schemas: Schemas) -> Call | None:
        if not self.keyed:
            return read_call(value)
        if not isinstance(value, dict) or len(value) != 1 or not schemas.keys() >= value.keys():
            return None
        [(name, arguments)] = value.items()
        return Call(name, dump(arguments))


@dataclass(frozen=True, slots=True)
class Named:
    """Reads a call as a name, a mark, the arguments as JSON, and another mark.

    Attributes:
        between: the mark after the name.
        end: the mark that ends the call.
    """

    between: str
    end: str

    def __call__(self, text: str, final: bool, schemas: Schemas) -> Reading:
        """Read a call."""
        name, between, rest = text.partition(self.between)
        if not between:
            return None
        for place in _places(rest, self.end):
            value, length = decode(rest[:place], True)
            if length and not rest[length:place].strip():
                whole = isinstance(value, dict) and bool(name.strip())
                read = len(name) + len(between) + place + len(self.end)
                return read, [Call(name.strip(), dump(value))] if whole else []
        return None


def _places(text: str, mark: str) -> Iterator[int]:
    place = text.find(mark)
    while place >= 0:
        yield place
        place = text.find(mark, place + 1)
