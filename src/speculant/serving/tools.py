"""Parsing of tool calls in the text of an answer, in the model's own format."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from typing import Any

from speculant.serving.call_readers import Call
from speculant.serving.call_values import Schemas
from speculant.serving.hermes import BEGIN, END, ObjectEnd
from speculant.serving.stops import StopFilter
from speculant.serving.tool_formats import HERMES, ToolFormat

_ANGLES = re.compile(r"</?[A-Za-z0-9_.|-]+>")
_HEAD = re.compile(r'\s*\{"name": ("(?:[^"\\]|\\.)*"), "arguments": (?=\{)')


def text_tokens(tokenizer: Any) -> tuple[str, ...]:
    """Return the added tokens in angle brackets that may be part of texts, such as `<think>`, except marks of calls."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    texts = [token.content for token in added if not token.special and token.content not in (BEGIN, END)]
    return tuple(text for text in texts if _ANGLES.fullmatch(text))


class ToolCallParser:
    """Separates a streamed answer into its text and its tool calls.

    Calls forced by a grammar are passed on as they grow; others once they are complete, since text that turns out not
    to be a call is part of the answer.

    Attributes:
        calls: calls found so far, in OpenAI's format.
    """

    def __init__(
        self,
        form: ToolFormat = HERMES,
        *,
        forced: bool = False,
        schemas: Schemas | None = None,
        allowed: frozenset[str] | None = None,
        limit: int | None = None,
    ) -> None:
        """Begin an answer.

        Args:
            form: format of the calls.
            forced: whether a grammar forces its calls, in Hermes' format.
            schemas: schema of each tool's arguments, by tool name.
            allowed: names of tools that may be called; calls of others are text. None for any.
            limit: maximum number of calls, beyond which they are text; None for no limit.
        """
        self.calls: list[dict[str, Any]] = []
        self._form, self._forced, self._schemas = form, forced, schemas or {}
        self._allowed, self._limit = allowed, limit
        self._outside = StopFilter(form.begins)
        self._bare = bool(form.bare)  # whether calls without a mark may begin here
        self._begin = ""  # the mark that began the current call
        self._inside: str | None = None
        self._rest = ""  # text after the calls read last
        self._object: ObjectEnd | None = None  # end of the arguments of a call that is passed on as it grows

    def push(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """Add text; return the answer's text that may be sent, and new parts of calls in OpenAI's format."""
        content, found = "", list[dict[str, Any]]()
        while text:
            if self._inside is None:
                passed, text = self._pass(text)
                content += passed
                if self._inside is None:
                    return content, found
            self._inside += text
            if self._forced:
                found += self._grow()
                if self._object is not None and not self._object.ended:
                    return content, found
            reading = self._form.read(self._inside, False, self._schemas)
            if reading is None:
                return content, found
            passed, calls = self._take(*reading)
            content, found, text = content + passed, found + calls, self._rest
        return content, found

    def flush(self) -> tuple[str, list[dict[str, Any]]]:
        """Return the parts held back, at the end of the answer; an incomplete call is text, unless it was passed on."""
        content, found = "", list[dict[str, Any]]()
        while self._inside is not None:
            reading = None if self._object else self._form.read(self._inside, True, self._schemas)
            if reading is None:
                text, self._inside = self._begin + self._inside, None
                return content + ("" if self._object else text), found
            passed, calls = self._take(*reading)
            content, found = content + passed, found + calls
            if self._rest:
                passed, calls = self.push(self._rest)
                content, found = content + passed, found + calls
        return content + self._outside.flush(), found

    def _pass(self, text: str) -> tuple[str, str]:
        """Return the part of a text before any call, and the rest; a call may have begun."""
        if self._bare:
            place = len(text) - len(text.lstrip())
            if place < len(text) and text[place] in self._form.bare:
                self._begin, self._inside = "", ""
                return text[:place], text[place:]
        passed = self._outside.push(text)
        if passed.strip():
            self._bare = False
        if not self._outside.stopped:
            return passed, ""
        self._begin, self._inside, text = self._outside.found or "", "", self._outside.rest
        self._outside = StopFilter(self._form.begins)
        return passed, text

    def _take(self, length: int, calls: list[Call]) -> tuple[str, list[dict[str, Any]]]:
        """Return text that turned out not to be a call, and the calls read; what follows is kept as the rest."""
        assert self._inside is not None
        inside, self._rest, self._inside = self._inside[:length], self._inside[length:], None
        if self._object is not None:
            self._object = None
            return "", []
        if not calls or not self.accepts(calls):
            self._bare = False
            return self._begin + inside, []
        return "", [self.add(call) for call in calls]

    def accepts(self, calls: Sequence[Call]) -> bool:
        """Return whether calls may be made."""
        allowed = all(self._allowed is None or call.name in self._allowed for call in calls)
        return allowed and (self._limit is None or len(self.calls) + len(calls) <= self._limit)

    def _grow(self) -> list[dict[str, Any]]:
        """Return the new part of the growing call, and remove it from the pending text."""
        found = list[dict[str, Any]]()
        assert self._inside is not None
        if self._object is None:
            head = _HEAD.match(self._inside)
            if head is None:
                return found
            self._inside, self._object = self._inside[head.end() :], ObjectEnd()
            found.append(self.add(Call(json.loads(head[1]), "")))
        length = self._object.take(self._inside)
        if length:
            arguments, self._inside = self._inside[:length], self._inside[length:]
            self.calls[-1]["function"]["arguments"] += arguments
            found.append({"index": len(self.calls) - 1, "function": {"arguments": arguments}})
        return found

    def add(self, call: Call) -> dict[str, Any]:
        """Add a call and return it in the format of a stream."""
        identity = {"id": call.identity or new_id(self._form), "type": "function"}
        self.calls.append(identity | {"function": {"name": call.name, "arguments": call.arguments}})
        return (
            {"index": len(self.calls) - 1} | identity | {"function": {"name": call.name, "arguments": call.arguments}}
        )


def new_id(form: ToolFormat) -> str:
    """Return a new id for a call, in the format that the model's chat template accepts."""
    return uuid.uuid4().hex[:9] if form.short_ids else f"call_{uuid.uuid4().hex[:24]}"
