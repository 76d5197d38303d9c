"""What a model thinks before its answer, separated from the answer while it grows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from speculant.serving.stops import StopFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """How a family of models marks reasoning.

    Attributes:
        begin, end: the marks; where the prompt ends with `begin`, the answer begins within the reasoning.
        label: that may follow `begin` and is no part of the reasoning.
    """

    begin: str
    end: str
    label: str = ""


REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    "think": ReasoningFormat(begin="<think>", end="</think>"),  # Qwen3, DeepSeek, GLM, Kimi K2
    "mistral": ReasoningFormat(begin="[THINK]", end="[/THINK]"),
    "gemma4": ReasoningFormat(begin="<|channel>", end="<channel|>", label="thought"),
    "kimi": ReasoningFormat(begin="◁think▷", end="◁/think▷"),
    "seed": ReasoningFormat(begin="<seed:think>", end="</seed:think>"),
}


class ReasoningParser:
    """Separates reasoning at the beginning of an answer from what follows; space around it is left out.

    Attributes:
        inside: whether the text so far ends within the reasoning.
    """

    def __init__(self, form: ReasoningFormat, *, begun: bool = False) -> None:
        """Begin an answer; `begun`: the prompt ended with the mark that begins the reasoning."""
        self.inside = begun
        self._form = form
        self._head: str | None = None if begun else ""  # what may be the mark that begins it
        self._label = f"{form.label}\n" if form.label else ""
        self._lead: str | None = ""  # what was read of it before its first word
        self._end = StopFilter([form.end])
        self._space = ""  # of the reasoning, behind its last word
        self._trim = False

    def push(self, text: str) -> tuple[str, str]:
        """Add text; return what is known of the reasoning, and of what follows."""
        if self._head is not None:
            self._head += text
            text, head = self._head, self._head.lstrip()
            if head.startswith(self._form.begin):
                text, self.inside = head[len(self._form.begin) :], True
            elif self._form.begin.startswith(head):
                return "", ""
            self._head = None
        if not self.inside:
            return "", self._after(text)
        text = self._end.push(text)
        if not self._end.stopped:
            return self._inner(text), ""
        self.inside, self._trim = False, True
        return self._inner(text, last=True), self._after(self._end.rest)

    def flush(self) -> tuple[str, str]:
        """Return what was held back, at the end of the answer."""
        if self._head is not None:
            return "", self._head
        return (self._inner(self._end.flush(), last=True), "") if self.inside else ("", "")

    def _inner(self, text: str, *, last: bool = False) -> str:
        """Return what may be sent of text within the reasoning."""
        if self._lead is not None:
            self._lead = (self._lead + text).lstrip()
            if self._label:
                lead = self._lead + ("\n" if last else "")
                if not last and len(lead) < len(self._label) and self._label.startswith(lead):
                    return ""
                self._lead, self._label = lead.removeprefix(self._label).lstrip(), ""
            if not self._lead:
                return ""
            text, self._lead = self._lead, None
        text = self._space + text
        kept = text.rstrip()
        self._space = text[len(kept) :]
        return kept

    def _after(self, text: str) -> str:
        """Return text behind the reasoning, without the space between."""
        if self._trim:
            text = text.lstrip()
            self._trim = not text
        return text
