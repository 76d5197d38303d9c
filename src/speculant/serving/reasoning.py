"""Separation of a model's reasoning from its streamed answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from speculant.serving.stops import StopFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """How a family of models marks reasoning.

    Attributes:
        begin, end: the marks; if the prompt ends with `begin`, the answer begins within the reasoning.
        label: a label that may follow `begin` and is not part of the reasoning.
        frames: marks around the answer itself, which are not part of it.
        outermost: whether frames stand only around the whole answer, since they are text elsewhere.
        tokens: special tokens that marks consist of, if they are not tokens themselves.
        asks: texts that the chat templates of its models contain; () for one of its marks.
    """

    begin: str
    end: str
    label: str = ""
    frames: tuple[str, ...] = ()
    outermost: bool = False
    tokens: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks and their tokens."""
        return (self.begin, self.end, *self.frames, *self.tokens)

    def is_asked(self, template: str) -> bool:
        """Return whether a chat template is of a model that marks its reasoning like this."""
        if self.asks:
            return all(text in template for text in self.asks)
        return self.begin in template or self.end in template


def make_hunyuan_reasoning(suffix: str = "") -> ReasoningFormat:
    """Return Hunyuan's format for a checkpoint whose special tokens have this suffix."""
    return ReasoningFormat(begin=f"<think{suffix}>", end=f"</think{suffix}>", asks=("<think:", "<tool_calls:"))


REASONING_FORMATS: Mapping[str, ReasoningFormat] = {  # most specific first
    "kimi_k3": ReasoningFormat(
        begin="<|open|>think<|sep|>",
        end="<|close|>think<|sep|>",
        frames=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        tokens=("<|open|>", "<|close|>", "<|sep|>"),
        asks=("<|open|>", "<|close|>", "<|sep|>"),
    ),
    "hunyuan": make_hunyuan_reasoning(),
    "solar_open": ReasoningFormat(
        begin="<|think|>",
        end="<|end|>",
        frames=("<|begin|>assistant", "<|content|>", "<|end|>", "<|flush|>"),
        tokens=("<|begin|>",),
        asks=("<|think|>", "<|content|>"),
    ),
    "ernie": ReasoningFormat(
        begin="<think>",
        end="</think>",
        frames=("<response>", "</response>"),
        outermost=True,
        asks=("</think>", "<response>"),
    ),
    "longcat": ReasoningFormat(begin="<longcat_think>", end="</longcat_think>"),
    "think": ReasoningFormat(begin="<think>", end="</think>"),  # Qwen3, DeepSeek, GLM, Kimi K2
    "mistral": ReasoningFormat(begin="[THINK]", end="[/THINK]"),
    "gemma4": ReasoningFormat(begin="<|channel>", end="<channel|>", label="thought"),
    "kimi": ReasoningFormat(begin="◁think▷", end="◁/think▷"),
    "cohere": ReasoningFormat(begin="<|START_THINKING|>", end="<|END_THINKING|>"),
    "apertus": ReasoningFormat(begin="<|inner_prefix|>", end="<|inner_suffix|>"),
    "apriel": ReasoningFormat(begin="Here are my reasoning steps:", end="[BEGIN FINAL RESPONSE]"),
    "seed": ReasoningFormat(begin="<seed:think>", end="</seed:think>"),
}


class FrameFilter:
    """Drops marks around an answer, and the whitespace after them."""

    def __init__(self, form: ReasoningFormat) -> None:
        """Begin an answer whose marks are the frames of a format."""
        self._form, self._marks = form, StopFilter(form.frames)
        self._began = self._trim = False  # whether there was text, and whether whitespace is dropped before the next
        self._held = ""  # a mark after text and what follows it, until more text shows that it is part of the text

    def push(self, text: str) -> str:
        """Add text; return the text that may be sent now."""
        passed = ""
        while True:
            passed += self._pass(self._marks.push(text))
            if not self._marks.stopped:
                return passed
            mark, text, self._marks = self._marks.found or "", self._marks.rest, StopFilter(self._form.frames)
            if self._began and self._form.outermost:
                self._held += mark
            else:
                self._trim = True

    def flush(self) -> str:
        """Return the text that was held back, at the end of the answer."""
        return self._pass(self._marks.flush())

    def _pass(self, text: str) -> str:
        if self._held:
            self._held += text
            if not text.strip():
                return ""
            text, self._held = self._held, ""
        elif self._trim:
            text = text.lstrip()
            self._trim = not text
        self._began = self._began or bool(text.strip())
        return text


class ReasoningParser:
    """Separates reasoning at the beginning of an answer from the rest; whitespace around it is dropped.

    Attributes:
        inside: whether the text so far ends within the reasoning.
    """

    def __init__(self, form: ReasoningFormat, *, begun: bool = False) -> None:
        """Begin an answer; `begun`: the prompt ended with the mark that begins the reasoning."""
        self.inside = begun
        self._form = form
        self._head: str | None = None if begun else ""  # text that may be the opening mark
        self._label = f"{form.label}\n" if form.label else ""
        self._lead: str | None = ""  # whitespace or label read before its first word
        self._end = StopFilter([form.end])
        self._space = ""  # trailing whitespace of the reasoning so far
        self._trim = False

    def push(self, text: str) -> tuple[str, str]:
        """Add text; return the new parts of the reasoning and of the text after it."""
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
        """Return the parts that were held back, at the end of the answer."""
        if self._head is not None:
            return "", self._head
        return (self._inner(self._end.flush(), last=True), "") if self.inside else ("", "")

    def _inner(self, text: str, *, last: bool = False) -> str:
        """Return the part of text within the reasoning that may be sent."""
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
        """Return text after the reasoning, without the whitespace in between."""
        if self._trim:
            text = text.lstrip()
            self._trim = not text
        return text
