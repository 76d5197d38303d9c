"""Tool calls written as expressions: lists of Python calls (Llama 4), and Gemma's format with marked strings."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from typing import Any

from speculant.serving.call_readers import Call, Reading, dump, read_objects
from speculant.serving.call_values import Schemas, retype_value, schema_of

_CONSTANTS = {"true": True, "false": False, "null": None}
_KEY = re.compile(r"([{,]\s*)([^\s{}\[\]:,\"]+)(?=\s*:)")
_WORD = re.compile(r"(?<=[:\[,])(\s*)(?!\s|true\b|false\b|null\b|-?\d)([^\s{}\[\],\"][^{}\[\],\"]*)")
_QUOTED = re.compile(r"(?s)'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"")  # where models write line ends as they are
_STRINGS = re.compile(r"'''|\"\"\"|'|\"")


@dataclass(frozen=True, slots=True)
class PythonList:
    """Reads a list of Python calls of known tools, or JSON objects, which these models also write.

    Attributes:
        end: the mark after it, which may be missing; "" if there is none.
    """

    end: str = ""

    def __call__(self, text: str, final: bool, schemas: Schemas) -> Reading:
        """Read a list."""
        begin = len(text) - len(text.lstrip())
        if re.compile(r"\[?\s*\{").match(text, begin):
            found = read_objects(text, final, schemas)
            return found if found is None or not found[1] else self._with_end(text, found[0], found[1], final)
        if not text.startswith("[", begin):
            return None if begin == len(text) and not final else (begin + 1, [])
        if text[begin + 1 :].isspace() or begin + 1 == len(text):  # an object may follow
            return None
        length = _list_end(text, begin)
        if not length:
            return None
        try:
            calls = [_read(node, schemas) for node in _elements(text[begin:length])]
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return length, []
        return self._with_end(text, length, calls, final)

    def _with_end(self, text: str, length: int, calls: list[Call], final: bool) -> Reading:
        """Return calls up to `length` with the mark after them, if it is there."""
        behind = text[length:].lstrip()
        if not final and len(behind) < len(self.end) and self.end.startswith(behind):
            return None
        marked = bool(self.end) and behind.startswith(self.end)
        return (len(text) - len(behind) + len(self.end) if marked else length), calls


@dataclass(frozen=True, slots=True)
class PythonLines:
    """Reads Python calls of known tools, each on a line of its own.

    Attributes:
        end: the mark that ends them.
    """

    end: str

    def __call__(self, text: str, final: bool, schemas: Schemas) -> Reading:
        """Read the lines."""
        place = text.find(self.end)
        if place < 0:
            return None
        try:
            nodes = ast.parse("\n".join(map(str.strip, text[:place].strip().splitlines()))).body
            calls = [_read(node.value, schemas) for node in nodes if isinstance(node, ast.Expr)]
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return place + len(self.end), []
        return place + len(self.end), calls if len(calls) == len(nodes) else []


@dataclass(frozen=True, slots=True)
class MarkedStrings:
    """Reads calls of the form `call:NAME{key:value}`, whose strings are enclosed in marks.

    Attributes:
        end: the mark that ends a call.
        quote: the mark around strings.
    """

    end: str
    quote: str

    def __call__(self, text: str, final: bool, schemas: Schemas) -> Reading:
        """Read a call."""
        place = text.find(self.end)
        while place >= 0 and text.count(self.quote, 0, place) % 2:
            place = text.find(self.end, place + 1)
        if place < 0:
            return None
        length, inside = place + len(self.end), text[:place].strip()
        name, brace, arguments = inside.removeprefix("call").removeprefix(":").partition("{")
        parts = f"{brace}{arguments}".split(self.quote)
        parts[::2] = [_WORD.sub(_quote, _KEY.sub(_quote, part)) for part in parts[::2]]
        parts[1::2] = [json.dumps(part, ensure_ascii=False) for part in parts[1::2]]
        try:
            value = json.loads("".join(parts))
        except (ValueError, RecursionError):
            return length, []
        name = name.strip()
        if not inside.startswith(("call:", ":")) or not name or not isinstance(value, dict):
            return length, []
        typed = {key: retype_value(each, schema_of(schemas, name, key)) for key, each in value.items()}
        return length, [Call(name, dump(typed))]


def _quote(found: re.Match[str]) -> str:
    return found[1] + json.dumps(found[2].strip(), ensure_ascii=False)


def _list_end(text: str, begin: int) -> int:
    """Return the end of the list that starts at `begin`, or 0 if it is incomplete; brackets in strings are ignored."""
    depth, place = 0, begin
    while place < len(text):
        symbol = text[place]
        if quote := _STRINGS.match(text, place):
            closed = re.compile(rf"(?:\\.|(?!{quote[0]}).)*{quote[0]}", re.DOTALL).match(text, quote.end())
            if closed is None:
                return 0
            place = closed.end()
            continue
        depth += (symbol in "([{") - (symbol in ")]}")
        place += 1
        if not depth:
            return place
    return 0


def _elements(text: str) -> list[ast.expr]:
    body = ast.parse(_QUOTED.sub(lambda found: found[0].replace("\n", "\\n"), text), mode="eval").body
    if not isinstance(body, ast.List) or not body.elts:
        raise ValueError("no list of calls")
    return body.elts


def _read(node: ast.expr, schemas: Schemas) -> Call:
    if not isinstance(node, ast.Call) or node.args or ast.unparse(node.func) not in schemas:
        raise ValueError("no call of a tool")
    arguments = dict[str, Any]()
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("arguments without a name")
        arguments[keyword.arg] = _value(keyword.value)
    return Call(ast.unparse(node.func), dump(arguments))


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [_value(each) for each in node.elts]
    if isinstance(node, ast.Dict):
        keys = [None if key is None else ast.literal_eval(key) for key in node.keys]
        if not all(isinstance(key, str) for key in keys):
            raise ValueError("a key is no text")
        return dict(zip(keys, map(_value, node.values), strict=True))
    value = ast.literal_eval(node)
    if not isinstance(value, str | int | float | None):
        raise ValueError("no value of JSON")
    return value
