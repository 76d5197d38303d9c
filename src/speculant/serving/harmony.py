"""Parsing of GPT-OSS answers: messages on channels (OpenAI's harmony format), as reasoning, text and calls."""

from __future__ import annotations

import json
import re
from typing import Any

from speculant.serving.call_readers import Call
from speculant.serving.stops import StopFilter
from speculant.serving.tools import ToolCallParser

MARKS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
_TO = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")


class HarmonyParser:
    """Separates a streamed answer into reasoning, text and calls.

    The channel `analysis` is reasoning; a message to a function is a call, on any channel; everything else is text,
    including text without a header.

    Attributes:
        inside: whether the text so far ends within reasoning.
        calls: calls found so far, in OpenAI's format.
    """

    def __init__(self, tools: ToolCallParser | None, *, reasons: bool = True) -> None:
        """Begin an answer, after `<|start|>assistant`.

        Args:
            tools: receives the calls; None if no tools are offered, so that messages to them are text.
            reasons: whether reasoning is separated from text.
        """
        self.inside = False
        self._tools, self._reasons = tools, reasons
        self._marks = StopFilter(MARKS)
        self._header: str | None = ""  # header of the message that begins; None within a message
        self._raw = ""  # raw text of a call
        self._name: str | None = None  # function name of a call
        self._arguments = ""

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Calls so far."""
        return [] if self._tools is None else self._tools.calls

    def push(self, text: str) -> tuple[str, str, list[dict[str, Any]]]:
        """Add text; return the new parts of reasoning, text and calls."""
        reasoning, content, found = "", "", list[dict[str, Any]]()
        while True:
            passed = self._marks.push(text)
            more = self._add(passed)
            reasoning, content = reasoning + more[0], content + more[1]
            if not self._marks.stopped:
                return reasoning, content, found
            mark, text, self._marks = self._marks.found or "", self._marks.rest, StopFilter(MARKS)
            more_text, calls = self._turn(mark)
            content, found = content + more_text, found + calls

    def flush(self) -> tuple[str, str, list[dict[str, Any]]]:
        """Return the parts that were held back, at the end of the answer; an incomplete call is text."""
        reasoning, content = self._add(self._marks.flush())
        if self._name is not None:
            text, found = self._end_call()
            return reasoning, content + text, found
        head = self._header if self._header is not None and self._header.strip() != "assistant" else ""
        return reasoning, content + (head or ""), []

    def _add(self, text: str) -> tuple[str, str]:
        """Add a piece of a message or header; return its reasoning and text."""
        if self._header is not None:
            self._header += text
        elif self._name is not None:
            self._arguments += text
        elif self.inside:
            return text, ""
        else:
            return "", text
        return "", ""

    def _turn(self, mark: str) -> tuple[str, list[dict[str, Any]]]:
        """Process a mark; return the text and the calls that it completes."""
        text, found = "", list[dict[str, Any]]()
        if self._header is None:
            if self._name is not None:
                text, found = self._end_call()
            self.inside, self._header = False, ""
        if mark == "<|message|>":
            self._begin(self._header or "")
        elif mark in ("<|channel|>", "<|constrain|>"):
            self._header = f"{self._header}{mark}"
        else:
            self._header = ""
        return text, found

    def _begin(self, header: str) -> None:
        """Begin a message."""
        to = _TO.search(header)
        self._header, self._raw, self._arguments = None, f"{header}<|message|>", ""
        self._name = to[1] if to and self._tools is not None else None
        self.inside = self._name is None and self._reasons and "<|channel|>analysis" in header

    def _end_call(self) -> tuple[str, list[dict[str, Any]]]:
        """End a call; return it, or its text if it is not a valid call."""
        name, raw, self._name = self._name or "", self._raw + self._arguments, None
        try:
            whole = isinstance(json.loads(self._arguments or "{}"), dict)
        except (ValueError, RecursionError):
            whole = False
        call = Call(name, self._arguments.strip() or "{}")
        if not whole or self._tools is None or not self._tools.accepts([call]):
            return raw, []
        return "", [self._tools.add(call)]
