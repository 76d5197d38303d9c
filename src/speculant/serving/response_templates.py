"""Parsing of answers by the response template of a checkpoint, with transformers' own parser.

Tokenizers may come with a `response_template`, which tells how reasoning, text and calls are written. It serves models
whose format of calls is not one of `tool_formats`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from speculant.core.errors import UsageError
from speculant.serving.call_readers import Call, read_call
from speculant.serving.tools import ToolCallParser

TEMPLATE = "response_template"
_CALLS = "tool_calls"
_REASONING = ("reasoning_content", "reasoning", "thinking")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResponseTemplate:
    """A response template.

    Attributes:
        loaded: the template as transformers' parser reads it.
        calls: whether it has a field of tool calls.
        marks: the special tokens of the tokenizer, which its fields may begin and end with.
    """

    loaded: Any
    calls: bool
    marks: tuple[str, ...]


def load_template(tokenizer: Any, *, required: bool = False) -> ResponseTemplate | None:
    """Return the response template of a tokenizer; None if there is none, or if it is invalid, which is logged.

    Raises:
        UsageError: a template is required, and there is none that can be used.
    """
    given = getattr(tokenizer, "response_template", None)
    if given is None:
        if required:
            raise UsageError("the tokenizer has no response template. Choose another parser, or leave it out.")
        return None
    try:
        from transformers.utils.chat_parsing.response_templates import load_response_template

        # A field that is missing is no error of the answer: what was decoded is passed on.
        fields = {name: {**each, "optional": True} for name, each in given["fields"].items()}
        loaded = load_response_template({**given, "fields": fields})
    except (ImportError, ValueError, TypeError, KeyError, AttributeError) as error:
        if required:
            raise UsageError(f"the tokenizer's response template cannot be used: {error}") from error
        _LOG.warning("the tokenizer's response template cannot be used: %s", error)
        return None
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    marks = tuple(token.content for token in added if token.special)
    return ResponseTemplate(loaded=loaded, calls=_CALLS in fields, marks=marks)


class TemplateParser:
    """Separates a streamed answer into reasoning, text and calls; fields of other names are text.

    Attributes:
        inside: whether the text so far ends within reasoning.
    """

    def __init__(
        self,
        template: ResponseTemplate,
        prompt: str,
        tools: ToolCallParser | None,
        *,
        schemas: Mapping[str, Any],
        reasons: bool = True,
    ) -> None:
        """Begin an answer.

        Args:
            template: the response template.
            prompt: the text before the answer, which may begin a field, such as reasoning.
            tools: receives the calls; None if no tools are offered, so that they are text.
            schemas: schema of each tool's arguments, by tool name, which determines the types of values.
            reasons: whether reasoning is separated from text.
        """
        from transformers.utils.chat_parsing import ResponseParser

        functions = [{"function": {"name": name, "parameters": schema}} for name, schema in schemas.items()]
        try:
            self._parser: Any = ResponseParser(template.loaded, prompt, tools=functions)
        except Exception:  # without its mark of an answer's beginning the whole prompt is parsed, whatever it says
            self._parser = ResponseParser(template.loaded, "", tools=functions)
        self._reasons = reasons
        self.inside = False
        self._field = ""
        self._unread = ""  # marks, text that may be one, and the current call
        self._fresh = True  # whether a mark may precede the next text
        self._broken = False  # whether a field could not be parsed, after which everything is text
        self._space: str | None = ""  # whitespace at the end of reasoning; None where whitespace is dropped
        self._tools: ToolCallParser | None = None  # what the prompt says is no call
        list(self._read(self._parser.initial_events))
        self._tools = tools

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Calls so far, in OpenAI's format."""
        return [] if self._tools is None else self._tools.calls

    def push(self, text: str) -> tuple[str, str, list[dict[str, Any]]]:
        """Add text; return the new parts of reasoning, text and calls."""
        reasoning, content, calls = "", "", list[dict[str, Any]]()
        for place, symbol in enumerate(text):
            if self._broken:
                return reasoning, content + text[place:], calls
            self._unread += symbol
            # Symbol by symbol, since the parser reports nothing of a text in which a field cannot be parsed.
            more = self._try(partial(self._parser.feed, symbol))
            reasoning, content, calls = reasoning + more[0], content + more[1], calls + more[2]
        return reasoning, content, calls

    def flush(self) -> tuple[str, str, list[dict[str, Any]]]:
        """Return the parts that were held back, at the end of the answer; an incomplete call is text."""
        return ("", "", []) if self._broken else self._try(lambda: self._parser.finalize()[1])

    def _try(self, feed: Callable[[], Any]) -> tuple[str, str, list[dict[str, Any]]]:
        """Return what events say; a field that cannot be parsed is text."""
        try:
            events = feed()
        except Exception:  # what parsing raises depends on the template
            self._broken, self.inside = True, False
            return "", self._unread, []
        reasoning, content, calls = "", "", list[dict[str, Any]]()
        for kind, value in self._read(events):
            if kind == "call":
                calls.append(value)
            elif kind == "reasoning":
                reasoning += value
            else:
                content += value
        return reasoning, content, calls

    def _read(self, events: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
        """Yield the additions to an answer: "reasoning", "text" or "call", and the text or the call."""
        for place, event in enumerate(events):
            kind, text = event["type"], event.get("text", "")
            if kind == "region_open":
                self._field, self._fresh = event["field"], True
                self.inside = self._reasons and self._field in _REASONING
                self._space = None if self.inside else self._space
            elif kind == "region_close":
                if self._field == _CALLS:
                    behind = sum(len(each.get("text", "")) for each in events[place:])
                    yield from self._end_calls(event["value"], self._unread[: len(self._unread) - behind])
                self._space = None if self.inside else ""
                self._field, self.inside, self._fresh = "", False, True
                self._unread = self._unread if events[place + 1 :] else ""
            elif self._field != _CALLS:
                marked = self._fresh or not self._unread.startswith(text)
                self._unread = self._unread.rpartition(text)[2] if marked else self._unread[len(text) :]
                self._fresh = False
                yield "reasoning" if self.inside else "text", self._trimmed(text)

    def _trimmed(self, text: str) -> str:
        """Return a part of a field's text without the whitespace around reasoning."""
        text = text.lstrip() if self._space is None else self._space + text
        if not text:
            return ""
        kept = text.rstrip() if self.inside else text
        self._space = text[len(kept) :]
        return kept

    def _end_calls(self, value: Any, raw: str) -> Iterator[tuple[str, Any]]:
        """Yield the calls of a field, or its raw text if they are not valid."""
        found = [_read_call(each) for each in (value if isinstance(value, list) else [value])]
        calls = [call for call in found if call is not None]
        if len(calls) < len(found) or self._tools is None or not self._tools.accepts(calls):
            yield "text", raw
            return
        for call in calls:
            yield "call", self._tools.add(call)


def _read_call(value: Any) -> Call | None:
    """Convert a call as templates describe it; return None if it is not one."""
    function = value.get("function", value) if isinstance(value, dict) else None
    return read_call(function | {"id": value.get("id")}) if isinstance(function, dict) else None
