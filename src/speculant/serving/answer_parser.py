"""Parsing of answers into reasoning, text and tool calls, in the formats that a model's chat template uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from speculant.core.errors import UsageError
from speculant.serving.harmony import MARKS as HARMONY
from speculant.serving.reasoning import REASONING_FORMATS, ReasoningFormat, ReasoningParser
from speculant.serving.tool_formats import TOOL_FORMATS, ToolFormat
from speculant.serving.tools import ToolCallParser


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFormats:
    """The formats in which a model writes its answers.

    Attributes:
        reasoning: format of the reasoning before the answer; None if it is not separated.
        tools: format of tool calls; None if unknown.
        harmony: whether answers are messages on channels (harmony); reasoning and calls then have this format.
        reasons: whether reasoning is separated from the answer.
    """

    reasoning: ReasoningFormat | None = None
    tools: ToolFormat | None = None
    harmony: bool = False
    reasons: bool = False

    @property
    def calls(self) -> bool:
        """Whether tool calls can be parsed."""
        return self.harmony or self.tools is not None

    def marks(self, *, reasons: bool, tools: bool) -> tuple[str, ...]:
        """Return the marks that must stay in an answer's text so that reasoning and tool calls can be parsed."""
        if self.harmony:
            return HARMONY
        found = list[str]()
        if reasons and self.reasoning is not None:
            found += [self.reasoning.begin, self.reasoning.end]
        if tools and self.tools is not None:
            found += self.tools.marks
        return tuple(found)


def find_formats(template: Any, *, reasoning: str = "auto", tools: str = "auto") -> AnswerFormats:
    """Return the formats of a model's answers.

    Args:
        template: the chat template, or None.
        reasoning: name of a format, "none", or "auto" to detect it from the template.
        tools: the same, without "none".
    """
    text = template if isinstance(template, str) else ""
    harmony = all(mark in text for mark in ("<|channel|>", "<|message|>"))
    if reasoning == "auto":
        known = [name for name, each in REASONING_FORMATS.items() if each.begin in text or each.end in text]
        reasoning = "harmony" if harmony else known[0] if known else "none"
    if tools == "auto":
        asked = [name for name, each in TOOL_FORMATS.items() if each.is_asked(text)]
        known = asked if "tools" in text else []
        tools = "harmony" if harmony else known[0] if known else "none"
    if (reasoning == "harmony" and tools not in ("harmony", "none")) or (
        tools == "harmony" and reasoning not in ("harmony", "none")
    ):
        raise UsageError(
            f"reasoning parser {reasoning!r} and tool parser {tools!r} do not go together: 'harmony' is a format of "
            "whole answers. Choose it for both, or for neither."
        )
    return AnswerFormats(
        reasoning=REASONING_FORMATS.get(reasoning),
        tools=TOOL_FORMATS.get(tools),
        harmony="harmony" in (reasoning, tools),
        reasons=reasoning != "none",
    )


class AnswerParser:
    """Separates a streamed answer into reasoning, text and tool calls."""

    def __init__(self, reasoning: ReasoningParser | None, tools: ToolCallParser | None) -> None:
        """Set the parsers of reasoning and of calls; None if the answer has none."""
        self._reasoning, self._tools = reasoning, tools

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
        return reasoning, text, calls


def shown_marks(tokenizer: Any, marks: Sequence[str]) -> dict[int, str]:
    """Return the marks that are special tokens, which decoding would leave out, by token id."""
    vocabulary = tokenizer.get_vocab() if marks else {}
    ids = {vocabulary[mark]: mark for mark in marks if mark in vocabulary}
    return {
        token: mark for token, mark in ids.items() if mark not in tokenizer.decode([token], skip_special_tokens=True)
    }
