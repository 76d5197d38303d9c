"""Tool calls in the text of an answer, for models that write them as `<tool_call>` and JSON (Qwen, Hermes).

Other formats are refused before decoding: a call that is not recognised would reach the client as text.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

from speculant.serving.stops import StopFilter

BEGIN, END = "<tool_call>", "</tool_call>"


def has_known_format(template: Any) -> bool:
    """Return whether a chat template asks for calls in this format."""
    return isinstance(template, str) and BEGIN in template and "tools" in template


class ToolCallParser:
    """Separates an answer into its text and its tool calls while it grows.

    Attributes:
        calls: found so far, in OpenAI's form.
    """

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self._outside = StopFilter([BEGIN])
        self._inside: str | None = None

    def push(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """Add text; return what of the answer's text may be sent, and the calls that became complete."""
        content, found = "", list[dict[str, Any]]()
        while text:
            if self._inside is None:
                content += self._outside.push(text)
                if not self._outside.stopped:
                    return content, found
                text, self._inside, self._outside = self._outside.rest, "", StopFilter([BEGIN])
            self._inside += text
            inside, end, text = self._inside.partition(END)
            if not end:
                return content, found
            self._inside = None
            call = self._parse(inside)
            if call is None:
                content += f"{BEGIN}{inside}{END}"
            else:
                found.append(call)
        return content, found

    def flush(self) -> str:
        """Return what was held back, at the end of the answer; an incomplete call is text."""
        if self._inside is None:
            return self._outside.flush()
        text, self._inside = BEGIN + self._inside, None
        return text

    def _parse(self, text: str) -> dict[str, Any] | None:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return None
        arguments = value.get("arguments", value.get("parameters", {}))
        call = {
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {
                "name": value["name"],
                "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False),
            },
        }
        self.calls.append(call)
        return call
