"""Tool calls in the text of an answer, in the format that its model writes them in."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from typing import Any

from speculant.serving.call_readers import Call
from speculant.serving.call_values import Schemas
from speculant.serving.stops import StopFilter
from speculant.serving.tool_formats import BEGIN, END, HERMES, ObjectEnd, ToolFormat

_ANGLES = re.compile(r"</?[A-Za-z0-9_.|-]+>")
_HEAD = re.compile(r'\s*\{"name": ("(?:[^"\\]|\\.)*"), "arguments": (?=\{)')


def text_tokens(tokenizer: Any) -> tuple[str, ...]:
    """Return the added tokens in angle brackets that are part of texts, such as `<think>`, but for marks of calls."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    texts = [token.content for token in added if not token.special and token.content not in (BEGIN, END)]
    return tuple(text for text in texts if _ANGLES.fullmatch(text))


class ToolCallParser:
    """Separates an answer into its text and its tool calls while it grows.

    Calls that a grammar forces are passed on as they grow; others once they are complete, since what turns out to be no
    call is text.

    Attributes:
        calls: found so far, in OpenAI's form.
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
            form: of the calls.
            forced: whether a grammar forces its calls, in Hermes' format.
            schemas: of the arguments of each tool, by its name.
            allowed: names of tools that may be called; calls of others are text. None for any.
            limit: of the number of calls, beyond which they are text; None for any.
        """
        self.calls: list[dict[str, Any]] = []
        self._form, self._forced, self._schemas = form, forced, schemas or {}
        self._allowed, self._limit = allowed, limit
        self._outside = StopFilter(form.begins)
        self._bare = bool(form.bare)  # whether calls without a mark may begin here
        self._begin = ""  # the mark that began what is inside
        self._inside: str | None = None
        self._rest = ""  # what followed the calls that were read last
        self._object: ObjectEnd | None = None  # of the arguments of a call that is passed on as it grows

    def push(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """Add text; return what of the answer's text may be sent, and what is new of its calls, in OpenAI's form."""
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
        """Return what was held back, at the end of the answer; an incomplete call is text, unless it was passed on."""
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
        """Return what of a text is outside of calls, and what follows; a call may have begun."""
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
        """Return a text that was no call, and the calls that were read; what follows is the rest."""
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
        """Return what is new of the call that grows, and take it away from the text inside."""
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
        """Return a new call as a stream holds it."""
        identity = {"id": call.identity or new_id(self._form), "type": "function"}
        self.calls.append(identity | {"function": {"name": call.name, "arguments": call.arguments}})
        return (
            {"index": len(self.calls) - 1} | identity | {"function": {"name": call.name, "arguments": call.arguments}}
        )


def new_id(form: ToolFormat) -> str:
    """Return an id for a call, as the model's chat template takes it."""
    return uuid.uuid4().hex[:9] if form.short_ids else f"call_{uuid.uuid4().hex[:24]}"
