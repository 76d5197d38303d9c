"""Calls whose arguments are trees of tags, in the format of MiniMax-M3.

Every tag follows the model's namespace token, so that values may contain any other tag:
`]<]minimax[>[<invoke name="NAME">]<]minimax[>[<KEY>VALUE]<]minimax[>[</KEY>]<]minimax[>[</invoke>`. Objects are tags
within tags, lists are tags `item`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from speculant.serving.call_readers import Call, Reading, dump
from speculant.serving.call_values import Schemas, read_value

NAMESPACE = "]<]minimax[>["
_DEEPEST = 64  # tags within tags
_END = re.compile(re.escape(NAMESPACE) + r"\s*</tool_call>")
_TAG = re.compile(r'\s*<(?P<close>/?)(?P<tag>invoke name="(?P<name>[^"\n]+)"|[^<>"\n]+)>(?P<text>.*)', re.DOTALL)


@dataclass(slots=True)
class _Node:
    """A tag that has not been closed: its own name, its text so far, and the values of the tags within."""

    tag: str
    schema: Any
    text: str
    inner: list[tuple[str, Any]] = field(default_factory=list)

    def schema_within(self, tag: str) -> Any:
        """Return the schema of a tag within this one; None if there is none."""
        if not isinstance(self.schema, dict):
            return None
        properties = self.schema.get("properties")
        if isinstance(properties, dict) and tag in properties:
            return properties[tag]
        return self.schema.get("items") if tag == "item" else None

    @property
    def mixed(self) -> bool:
        """Whether it has both tags and other text, which no value is written as."""
        return bool(self.inner and self.text.strip())

    def members(self) -> dict[str, Any]:
        """Return the values of the tags within; a repeated tag is a list."""
        found = dict[str, list[Any]]()
        for tag, value in self.inner:
            found.setdefault(tag, []).append(value)
        return {tag: values if len(values) > 1 else values[0] for tag, values in found.items()}

    def value(self) -> Any:
        """Return its value, once it is closed."""
        kind = self.schema.get("type") if isinstance(self.schema, dict) else None
        if not self.inner:
            if not self.text.strip() and kind in ("array", "object"):
                return [] if kind == "array" else {}
            return read_value(self.text, self.schema)
        if kind != "object" and all(tag == "item" for tag, _ in self.inner):
            return [value for _, value in self.inner]
        return self.members()


def read_minimax_m3(text: str, final: bool, schemas: Schemas) -> Reading:
    """Read consecutive calls up to the mark that ends them; the end of the answer is accepted too."""
    end = _END.search(text)
    if end is None and not final:
        return None
    inside, length = (text, len(text)) if end is None else (text[: end.start()], end.end())
    before, *pieces = inside.split(NAMESPACE)
    calls, path = list[Call](), list[_Node]()  # path: the open tags, outermost first
    if before.strip():
        return length, []
    for piece in pieces:
        found = _TAG.fullmatch(piece)
        if found is None:
            return length, []
        tag, after = found["tag"], found["text"]
        if not found["close"]:
            if bool(path) == bool(found["name"]) or len(path) > _DEEPEST:  # a call in a call, or an argument outside
                return length, []
            schema = path[-1].schema_within(tag) if path else schemas.get(found["name"])
            path.append(_Node(found["name"] or tag, schema, after))
            continue
        if not path or tag != ("invoke" if len(path) == 1 else path[-1].tag):
            return length, []
        node = path.pop()
        if node.mixed:
            return length, []
        if path:
            path[-1].inner.append((node.tag, node.value()))
            path[-1].text += after
        elif after.strip() or node.text.strip():
            return length, []
        else:
            calls.append(Call(node.tag, dump(node.members())))
    return length, [] if path else calls
