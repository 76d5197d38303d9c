"""Parsing of answers into reasoning, text and tool calls, in the formats that a model's chat template uses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from speculant.core.errors import UsageError
from speculant.serving.harmony import MARKS as HARMONY
from speculant.serving.reasoning import (
    REASONING_FORMATS,
    FrameFilter,
    ReasoningFormat,
    ReasoningParser,
    make_hunyuan_reasoning,
)
from speculant.serving.response_templates import TEMPLATE, ResponseTemplate, load_template
from speculant.serving.tool_formats import TOOL_FORMATS, ToolFormat, make_hunyuan
from speculant.serving.tools import ToolCallParser

_WHOLE = ("harmony", TEMPLATE)  # formats of whole answers
_HUNYUAN_SUFFIX = re.compile(r"<(?:think|tool_calls)(:[^\s<>]+)>")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFormats:
    """The formats in which a model writes its answers.

    Attributes:
        reasoning: format of the reasoning before the answer; None if it is not separated.
        tools: format of tool calls; None if unknown.
        harmony: whether answers are messages on channels (harmony); reasoning and calls then have this format.
        template: response template of the checkpoint if answers are parsed by it; reasoning and calls are its fields.
        framing: the format whose frames stand around the text, also if reasoning is not separated; None without frames.
        reasons: whether reasoning is separated from the answer.
    """

    reasoning: ReasoningFormat | None = None
    tools: ToolFormat | None = None
    harmony: bool = False
    template: ResponseTemplate | None = None
    framing: ReasoningFormat | None = None
    reasons: bool = False

    @property
    def calls(self) -> bool:
        """Whether tool calls can be parsed."""
        return self.harmony or self.tools is not None or (self.template is not None and self.template.calls)

    def marks(self, *, reasons: bool, tools: bool) -> tuple[str, ...]:
        """Return the marks that must stay in an answer's text so that reasoning and tool calls can be parsed."""
        if self.harmony:
            return HARMONY
        if self.template is not None:
            return self.template.marks
        found = list[str]()
        if reasons and self.reasoning is not None:
            found += self.reasoning.marks
        if self.framing is not None:
            found += self.framing.frames + self.framing.tokens
        if tools and self.tools is not None:
            found += self.tools.marks
        return tuple(found)


def find_formats(
    template: Any, tokenizer: Any = None, *, reasoning: str = "auto", tools: str = "auto"
) -> AnswerFormats:
    """Return the formats of a model's answers.

    Args:
        template: the chat template, or None.
        tokenizer: the tokenizer, whose response template is used if the format of calls is not known otherwise.
        reasoning: name of a format, "none", or "auto" to detect it from the template.
        tools: the same, without "none".

    Raises:
        UsageError: the formats cannot be combined, or the response template that is asked for is missing or invalid.
    """
    text = template if isinstance(template, str) else ""
    harmony = all(mark in text for mark in ("<|channel|>", "<|message|>"))
    asked = [name for name, each in TOOL_FORMATS.items() if "tools" in text and each.is_asked(text)]
    known = [name for name, each in REASONING_FORMATS.items() if each.is_asked(text)]
    own = None
    unknown = tools == "auto" and reasoning in ("auto", "none") and not harmony and not asked
    if TEMPLATE in (reasoning, tools) or unknown:
        own = load_template(tokenizer, required=TEMPLATE in (reasoning, tools))
    named = [name for name in (reasoning, tools) if name in _WHOLE]
    whole = named[0] if named else "harmony" if harmony else TEMPLATE if own is not None else None
    if reasoning == "auto":
        reasoning = whole or (known[0] if known else "none")
    if tools == "auto":
        tools = whole or (asked[0] if asked else "none")
    for name, other in ((reasoning, tools), (tools, reasoning)):
        if name in _WHOLE and other not in (name, "none"):
            raise UsageError(
                f"reasoning parser {reasoning!r} and tool parser {tools!r} do not go together: {name!r} is a format of "
                "whole answers. Choose it for both, or for neither."
            )
    reasoning_format, tool_format = REASONING_FORMATS.get(reasoning), TOOL_FORMATS.get(tools)
    framing = reasoning_format or (REASONING_FORMATS[known[0]] if known and reasoning == "none" else None)
    suffix = _HUNYUAN_SUFFIX.search(text)
    if suffix is not None:
        reasoning_format = make_hunyuan_reasoning(suffix[1]) if reasoning == "hunyuan" else reasoning_format
        tool_format = make_hunyuan(suffix[1]) if tools == "hunyuan" else tool_format
    return AnswerFormats(
        reasoning=reasoning_format,
        tools=tool_format,
        harmony="harmony" in (reasoning, tools),
        template=own if TEMPLATE in (reasoning, tools) else None,
        framing=framing if framing is not None and framing.frames else None,
        reasons=reasoning != "none",
    )


class AnswerParser:
    """Separates a streamed answer into reasoning, text and tool calls."""

    def __init__(
        self,
        reasoning: ReasoningParser | None,
        tools: ToolCallParser | None,
        *,
        framing: ReasoningFormat | None = None,
    ) -> None:
        """Set the parsers of reasoning and of calls, and the format of the frames; None if the answer has none."""
        self._reasoning, self._tools = reasoning, tools
        self._frames = None if framing is None else FrameFilter(framing)

    @property
    def inside(self) -> bool:
        """Whether the text so far ends within reasoning."""
        return self._reasoning is not None and self._reasoning.inside

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Calls so far, in OpenAI's format."""
        return [] if self._tools is None else self._tools.calls

    def push(self, text: str) -> tuple[str, str, list[dict[str, Any]]]:
        """Add text; return the new parts of reasoning, text and calls."""
        reasoning, calls = "", list[dict[str, Any]]()
        if self._reasoning is not None:
            reasoning, text = self._reasoning.push(text)
        if self._tools is not None:
            text, calls = self._tools.push(text)
        if self._frames is not None:
            text = self._frames.push(text)
        return reasoning, text, calls

    def flush(self) -> tuple[str, str, list[dict[str, Any]]]:
        """Return the parts that were held back, at the end of the answer."""
        reasoning, text, calls = "", "", list[dict[str, Any]]()
        if self._reasoning is not None:
            reasoning, text = self._reasoning.flush()
        if self._tools is not None:
            text, calls = self._tools.push(text)
            rest, more = self._tools.flush()
            text, calls = text + rest, calls + more
        if self._frames is not None:
            text = self._frames.push(text) + self._frames.flush()
        return reasoning, text, calls


def shown_marks(tokenizer: Any, marks: Sequence[str]) -> dict[int, str]:
    """Return the marks that are special tokens, which decoding would leave out, by token id."""
    vocabulary = tokenizer.get_vocab() if marks else {}
    ids = {vocabulary[mark]: mark for mark in marks if mark in vocabulary}
    return {
        token: mark for token, mark in ids.items() if mark not in tokenizer.decode([token], skip_special_tokens=True)
    }
