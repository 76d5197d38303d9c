"""Tool calls in the text of an answer, for models that write them as `<tool_call>` and JSON (Qwen, Hermes).

Other formats are refused before decoding: a call that is not recognised would reach the client as text.
"""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

from speculant.serving.stops import StopFilter

BEGIN, END = "<tool_call>", "</tool_call>"
_ANGLES = re.compile(r"</?[A-Za-z0-9_.|-]+>")
_HEAD = re.compile(r'\s*\{"name": ("(?:[^"\\]|\\.)*"), "arguments": (?=\{)')


def has_known_format(tokenizer: Any) -> bool:
    """Return whether a tokenizer's chat template asks for calls in this format, and its texts keep their marks."""
    template = getattr(tokenizer, "chat_template", None)
    if not isinstance(template, str) or BEGIN not in template or "tools" not in template:
        return False
    ids = tokenizer(f"{BEGIN}{END}", add_special_tokens=False)["input_ids"]
    text = tokenizer.decode(ids, skip_special_tokens=True)
    return BEGIN in text and END in text


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

    def __init__(self, *, forced: bool = False) -> None:
        """Begin an answer; `forced`: a grammar forces its calls."""
        self.calls: list[dict[str, Any]] = []
        self._forced = forced
        self._outside = StopFilter([BEGIN])
        self._inside: str | None = None
        self._object: ObjectEnd | None = None  # of the arguments of a call that is passed on as it grows

    def push(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """Add text; return what of the answer's text may be sent, and what is new of its calls, in OpenAI's form."""
        content, found = "", list[dict[str, Any]]()
        while text:
            if self._inside is None:
                content += self._outside.push(text)
                if not self._outside.stopped:
                    return content, found
                text, self._inside, self._outside = self._outside.rest, "", StopFilter([BEGIN])
            self._inside += text
            if self._forced:
                found += self._grow()
            place = _end_of(self._inside)
            if place < 0 or (self._object is not None and not self._object.ended):
                return content, found
            inside, text = self._inside[:place], self._inside[place + len(END) :]
            self._inside = None
            if self._object is not None:
                self._object = None
            elif call := _parse(inside):
                found.append(self._add(call["name"], call["arguments"]))
            else:
                content += f"{BEGIN}{inside}{END}"
        return content, found

    def flush(self) -> str:
        """Return what was held back, at the end of the answer; an incomplete call is text, unless it was passed on."""
        if self._inside is None:
            return self._outside.flush()
        text, self._inside = BEGIN + self._inside, None
        return text if self._object is None else ""

    def _grow(self) -> list[dict[str, Any]]:
        """Return what is new of the call that grows, and take it away from the text inside."""
        found = list[dict[str, Any]]()
        assert self._inside is not None
        if self._object is None:
            head = _HEAD.match(self._inside)
            if head is None:
                return found
            self._inside, self._object = self._inside[head.end() :], ObjectEnd()
            found.append(self._add(json.loads(head[1]), ""))
        length = self._object.take(self._inside)
        if length:
            arguments, self._inside = self._inside[:length], self._inside[length:]
            self.calls[-1]["function"]["arguments"] += arguments
            found.append({"index": len(self.calls) - 1, "function": {"arguments": arguments}})
        return found

    def _add(self, name: str, arguments: str) -> dict[str, Any]:
        """Return a new call as a stream holds it."""
        identity = {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function"}
        self.calls.append(identity | {"function": {"name": name, "arguments": arguments}})
        return {"index": len(self.calls) - 1} | identity | {"function": {"name": name, "arguments": arguments}}


class ObjectEnd:
    """Finds where a JSON object ends in text that comes in pieces.

    Attributes:
        ended: whether it has.
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
    """Return where what ends a call stands in a text, -1 for nowhere; within a string of JSON it ends nothing."""
    place, begin = text.find(END), text.find("{")
    while place >= 0:
        reading = ObjectEnd()
        reading.take(text[begin:place] if 0 <= begin < place else "")
        if not reading.quoted:
            return place
        place = text.find(END, place + 1)
    return -1


def _parse(text: str) -> dict[str, str] | None:
    """Return the name and the arguments, in JSON, of a whole call; None where the text is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {"name": value["name"], "arguments": arguments}
