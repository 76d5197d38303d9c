"""Readers of tool calls after the mark that begins them: JSON between marks, bare JSON, and tags.

A reader is given the text so far after the mark, whether the answer has ended, and the schemas of the tools. It returns
None while it needs more text, otherwise the number of characters read and the calls in them, which is empty if they are
not calls. Whether it waits depends on the text alone, so that any division into pieces yields the same calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from speculant.serving.call_values import Schemas, read_value, schema_of

_JSON = json.JSONDecoder()
_SPACE = re.compile(r"\s*")
_NAMED = re.compile(r"\s*([^\s\[\]{}]+)(?:\[CALL_ID\](\w+))?(?:\[ARGS\])?\s*(?=\{)")


@dataclass(frozen=True, slots=True)
class Call:
    """A call: its name, its arguments as JSON, and the id that the model gave it."""

    name: str
    arguments: str
    identity: str | None = None


Reading = tuple[int, list[Call]] | None
Reader = Callable[[str, bool, Schemas], Reading]


def read_call(value: Any) -> Call | None:
    """Convert a JSON object to a call; return None if it is not one."""
    name = value.get("name", value.get("tool_name")) if isinstance(value, dict) else None
    if not isinstance(name, str):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    identity = value.get("id")
    return Call(name, dump({} if arguments is None else arguments), identity if isinstance(identity, str) else None)


def dump(arguments: Any) -> str:
    """Return arguments as JSON; text is assumed to be JSON already."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Section:
    """Reads consecutive calls up to a mark.

    Attributes:
        end: the mark; the end of the answer is accepted too.
        call: matches a call, with the groups `name` and `arguments`, and optionally `id`.
    """

    end: str
    call: re.Pattern[str]

    def __call__(self, text: str, final: bool, schemas: Schemas) -> Reading:
        """Read a section."""
        place = text.find(self.end)
        if place < 0 and not final:
            return None
        inside, length = (text, len(text)) if place < 0 else (text[:place], place + len(self.end))
        calls = list[Call]()
        for found in _match_all(self.call, inside):
            if found is None or not _is_object(found["arguments"]):
                return length, []
            calls.append(Call(found["name"], found["arguments"].strip(), found.groupdict().get("id")))
        return length, calls


@dataclass(frozen=True, slots=True)
class Tags:
    """Reads a call whose arguments are written as tags.

    Attributes:
        end: the mark that ends the call.
        call: matches a whole call without the end mark, with the groups `name` and `arguments`.
        argument: matches an argument, with the groups `name` and `value`.
        opens, closes: delimiters of a value; an `end` mark between them is part of the value.
        framed: whether values stand on lines of their own.
        closed: whether a call is known to be whole without the end mark, which may be missing at the end of an answer.
    """

    end: str
    call: re.Pattern[str]
    argument: re.Pattern[str]
    opens: str
    closes: str
    framed: bool = False
    closed: bool = False

    def __call__(self, text: str, final: bool, schemas: Schemas) -> Reading:
        """Read a call."""
        end = _find_end(text, re.compile(re.escape(self.end)), self.opens, self.closes)
        if end is None and not (final and self.closed and self.call.fullmatch(text)):
            return None
        length, inside = (len(text), text) if end is None else (end.end(), text[: end.start()])
        found = self.call.fullmatch(inside)
        if found is None:
            return length, []
        arguments, name = dict[str, Any](), found["name"].strip()
        for each in _match_all(self.argument, found["arguments"]):
            if each is None:
                return length, []
            key = each["name"].strip()
            value = each["value"]
            if self.framed and len(value) > 1 and value[0] == value[-1] == "\n":
                value = value[1:-1]
            arguments[key] = read_value(value, schema_of(schemas, name, key))
        return length, [Call(name, dump(arguments))] if name else []


@dataclass(frozen=True, slots=True)
class TagSection:
    """Reads consecutive calls whose arguments are tags that contain values verbatim.

    Attributes:
        end: matches the mark that ends them, without groups of its own; the end of the answer is accepted too.
        call: matches a call, with the groups `name` and `arguments`.
        argument: matches an argument, with the groups `name` and `value`, and optionally `kind`, which is "true" or
            "string" for text and anything else for JSON; without it, the tool's schema determines the type of a value.
        opens, closes: delimiters of a value; an `end` mark between them is part of the value.
        whole: matches the arguments as one JSON object, the group `value`; None if there is no such form.
        escaped: whether names have `&quot;` and `&amp;` in place of `"` and `&`.
    """

    end: re.Pattern[str]
    call: re.Pattern[str]
    argument: re.Pattern[str]
    opens: str
    closes: str
    whole: re.Pattern[str] | None = None
    escaped: bool = False

    def __call__(self, text: str, final: bool, schemas: Schemas) -> Reading:
        """Read a section."""
        end = _find_end(text, self.end, self.opens, self.closes)
        if end is None and not final:
            return None
        inside, length = (text, len(text)) if end is None else (text[: end.start()], end.end())
        calls = list[Call]()
        for found in _match_all(self.call, inside):
            name = "" if found is None else self._name(found["name"])
            arguments = None if found is None else self._read(found["arguments"], name, schemas)
            if arguments is None:
                return length, []
            calls.append(Call(name, arguments))
        return length, calls

    def _name(self, text: str) -> str:
        return text.replace("&quot;", '"').replace("&amp;", "&") if self.escaped else text

    def _read(self, text: str, tool: str, schemas: Schemas) -> str | None:
        """Parse the arguments of a call, and return them as JSON; None if they are invalid."""
        whole = self.whole.fullmatch(text) if self.whole is not None else None
        if whole is not None:
            return whole["value"].strip() if _is_object(whole["value"]) else None
        arguments = dict[str, Any]()
        for each in _match_all(self.argument, text):
            if each is None:
                return None
            name, kind = self._name(each["name"]), each.groupdict().get("kind")
            schema = {"type": "string"} if kind in ("true", "string") else {}
            arguments[name] = read_value(each["value"], schema if kind else schema_of(schemas, tool, name))
        return dump(arguments)


def _find_end(text: str, end: re.Pattern[str], opens: str, closes: str) -> re.Match[str] | None:
    """Return the first match of `end` that is not within a value; None if there is none."""
    depth = 0
    for found in re.finditer(f"(?P<opens>{re.escape(opens)})|(?P<closes>{re.escape(closes)})|{end.pattern}", text):
        if found.lastgroup is not None:
            depth += 1 if found.lastgroup == "opens" else -1
        elif depth <= 0:
            return found
    return None


def _match_all(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str] | None]:
    """Yield the matches that a text consists of, separated only by whitespace; finally None if other text is left.

    Each is tried only where the one before it ended: text without matches would otherwise be searched from every place.
    """
    place = 0
    while True:
        space = _SPACE.match(text, place)
        place = place if space is None else space.end()
        if place == len(text):
            return
        found = pattern.match(text, place)
        yield found
        if found is None:
            return
        place = found.end()


def read_mistral(text: str, final: bool, _schemas: Schemas) -> Reading:
    """Read a list of JSON objects or one of them, or a name followed by JSON."""
    if text.lstrip().startswith(("[", "{")):
        value, length = decode(text, final)
        if not length:
            return None
        calls = [read_call(each) for each in (value if isinstance(value, list) else [value])]
        return length, [call for call in calls if call] if all(calls) else []
    head = _NAMED.match(text)
    if head is None:
        return None
    value, length = decode(text[head.end() :], final)
    if not length:
        return None
    return head.end() + length, [Call(head[1], dump(value), head[2])]


def read_objects(text: str, final: bool, schemas: Schemas) -> Reading:
    """Read calls of known tools, as a list of JSON objects or as objects separated by semicolons."""
    calls, place = list[Call](), 0
    while True:
        value, length = decode(text[place:], final)
        if not length:
            return (place, calls) if final and calls else None
        found = [read_call(each) for each in (value if isinstance(value, list) else [value])]
        known = [call for call in found if call is not None and call.name in schemas]
        if not found or len(known) < len(found):
            return (place, calls) if calls else (length, [])
        calls += known
        place += length
        behind = re.compile(r"\s*;?\s*").match(text, place)
        assert behind is not None
        if behind.end() == len(text):
            return (len(text), calls) if final else None
        if text[behind.end()] != "{":
            return place, calls
        place = behind.end()


def decode(text: str, final: bool, *, before: str = "") -> tuple[Any, int]:
    """Return the JSON value that a text begins with, and its length, which is 0 if it is incomplete.

    Parsing is only attempted if the text so far may end the value, so that a long one is not reparsed with each piece.

    Args:
        text: begins with the value.
        final: whether the text has ended.
        before: a mark that may follow the value; "" for none.
    """
    if not final and not text.rstrip().endswith(("}", "]")) and not (before and before in text):
        return None, 0
    begin = len(text) - len(text.lstrip())
    try:
        value, end = _JSON.raw_decode(text, begin)
    except (ValueError, RecursionError):
        return None, 0
    return value, end


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
