"""Parsing of answers by the response template of a checkpoint, with transformers' own parser.

Tokenizers may come with a `response_template`, which tells how reasoning, text and calls are written. It serves models
whose format of calls is not one of `tool_formats`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from speculant.core.errors import UsageError
from speculant.serving.call_readers import Call, read_call
from speculant.serving.tools import ToolCallParser

TEMPLATE = "response_template"
_CALLS = "tool_calls"
_REASONING = ("reasoning_content", "reasoning", "thinking")
logger = logging.getLogger(__name__)


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
        from transformers.utils.chat_parsing import ResponseParser
        from transformers.utils.chat_parsing.response_templates import load_response_template

        # A field that is missing is no error of the answer: what was decoded is passed on.
        fields = {name: {**each, "optional": True} for name, each in given["fields"].items()}
        loaded = load_response_template({**given, "fields": fields})
        _held_by(ResponseParser(loaded, ""))  # other versions may lack it
    except (ImportError, ValueError, TypeError, KeyError, AttributeError) as error:
        if required:
            raise UsageError(f"the tokenizer's response template cannot be used: {error}") from error
        logger.warning("the tokenizer's response template cannot be used: %s", error)
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
        begins = template.loaded.start_anchor_re.search(prompt)  # else the parser would read the whole prompt
        self._parser: Any = ResponseParser(template.loaded, prompt if begins else "", tools=functions)
        self._form = template.loaded.fields.get(_CALLS)
        self._tools, self._reasons = tools, reasons
        self.inside = False
        self._field = ""
        self._raw = ""  # the current call so far, with the mark that began it
        self._broken = False  # whether a field could not be parsed, after which everything is text
        self._trim, self._space = False, ""  # whether whitespace is dropped before the next text; whitespace held back
        for event in self._parser.initial_events:
            self._turn(event)
        self._theirs = len(_held_by(self._parser))  # characters of the prompt that the parser still holds

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
            # Symbol by symbol, since the parser reports nothing of a text in which a field cannot be parsed.
            more = self._feed(symbol)
            reasoning, content, calls = reasoning + more[0], content + more[1], calls + more[2]
        return reasoning, content, calls

    def flush(self) -> tuple[str, str, list[dict[str, Any]]]:
        """Return the parts that were held back, at the end of the answer; an incomplete call is text."""
        if self._broken:
            return "", "", []
        if self._form is not None and self._form.close_re is not None:
            opens = self._form.open_re
            held = _held_by(self._parser)
            begun = self._field == _CALLS or (opens is not None and opens.search(held))
            if begun and not self._form.close_re.search(held):
                return "", self._raw + held[self._theirs :], []
        return self._feed(None)

    def _feed(self, symbol: str | None) -> tuple[str, str, list[dict[str, Any]]]:
        """Return the additions of a symbol, or of the answer's end for None; what cannot be parsed is text."""
        before = _held_by(self._parser) + (symbol or "")
        try:
            events = self._parser.finalize()[1] if symbol is None else self._parser.feed(symbol)
        except Exception:  # what parsing raises depends on the template
            self._broken, self.inside = True, False
            return "", self._raw + before[self._theirs :], []
        read = before if symbol is None else before[: len(before) - len(_held_by(self._parser))]
        read, self._theirs = read[self._theirs :], max(0, self._theirs - len(read))
        return self._read(events, read)

    def _read(self, events: Sequence[Mapping[str, Any]], read: str) -> tuple[str, str, list[dict[str, Any]]]:
        """Return the additions of events, which account for a text that was read."""
        parts, calls, left = {True: "", False: ""}, list[dict[str, Any]](), read
        for place, event in enumerate(events):
            text = event.get("text", "")
            if event["type"] == "region_close" and self._field == _CALLS:
                later = sum(len(each.get("text", "")) for each in events[place:])
                found = self._end_calls(event["value"])
                calls += found or []
                parts[False] += "" if found else self._raw + left[: len(left) - later]
                left, self._raw = left[len(left) - later :], ""
            elif text and self._field != _CALLS:
                text = text[max(0, len(text) - len(left)) :]  # what precedes this belongs to the prompt
                left = left.partition(text)[2] if text else left
                parts[self.inside] += self._trim_text(text)
            self._turn(event)
        self._raw += left if self._field == _CALLS else ""
        return parts[True], parts[False], calls

    def _turn(self, event: Mapping[str, Any]) -> None:
        """Note the beginning or end of a field."""
        if event["type"] == "region_open":
            self._field = event["field"]
            self.inside = self._reasons and self._field in _REASONING
            self._trim = self._trim or self.inside
        elif event["type"] == "region_close":
            self._trim, self._space = self.inside, ""
            self._field, self.inside = "", False

    def _trim_text(self, text: str) -> str:
        """Return a part of a field's text without the whitespace around reasoning."""
        text = text.lstrip() if self._trim else self._space + text
        self._trim = self._trim and not text
        kept = text.rstrip() if self.inside else text
        self._space = text[len(kept) :]
        return kept

    def _end_calls(self, value: Any) -> list[dict[str, Any]] | None:
        """Return the calls of a field; None if they are not valid."""
        found = [_read_call(each) for each in (value if isinstance(value, list) else [value])]
        calls = [call for call in found if call is not None]
        if not calls or len(calls) < len(found) or self._tools is None or not self._tools.accepts(calls):
            return None
        return [self._tools.add(call) for call in calls]


def _held_by(parser: Any) -> str:
    """Return the text that a parser holds back, since it may be a mark; transformers has no public name for it."""
    return str(parser._buffer[parser._pos :])


def _read_call(value: Any) -> Call | None:
    """Convert a call as templates describe it; return None if it is not one."""
    function = value.get("function", value) if isinstance(value, dict) else None
    return read_call(function | {"id": value.get("id")}) if isinstance(function, dict) else None
