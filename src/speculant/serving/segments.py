"""An answer as a sequence of segments: reasoning, text and tool calls, for protocols with typed streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from speculant.serving.turns import AnswerPart


@dataclass(slots=True, kw_only=True)
class AnswerSegment:
    """A section of an answer of one kind.

    Attributes:
        kind: its kind.
        index: its index in the answer.
        text: its text so far; for a call, its arguments as JSON.
        name, call_id: name and id of a call.
        whole: whether it is complete; a truncated call is not.
    """

    kind: Literal["text", "reasoning", "call"]
    index: int
    text: str = ""
    name: str = ""
    call_id: str = ""
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """An event of a segment: it began, grew by a text, or ended."""

    kind: Literal["begin", "grow", "end"]
    segment: AnswerSegment
    text: str = ""


class Segmenter:
    """Divides one answer's parts into segments.

    Whitespace before the first word of a text is held back, since between calls it is not a text of its own.

    Attributes:
        segments: segments so far.
        finish_reason: finish reason of the answer, once it has ended.
    """

    def __init__(self) -> None:
        self.segments: list[AnswerSegment] = []
        self.finish_reason: str | None = None
        self._open: AnswerSegment | None = None
        self._space = ""

    def push(self, part: AnswerPart) -> Iterator[Step]:
        """Yield the steps of a part."""
        if part.reasoning:
            yield from self._grow("reasoning", part.reasoning)
        if part.text:
            text = self._space + part.text
            if (self._open is None or self._open.kind != "text") and not text.strip():
                self._space = text
            else:
                self._space = ""
                yield from self._grow("text", text)
        for call in part.calls:
            function = call["function"]
            if "id" in call:
                self._space = ""
                yield from self._begin("call", name=function["name"], call_id=call["id"])
            if function.get("arguments"):
                yield from self._grow("call", function["arguments"])
        if part.finish_reason is not None:
            self.finish_reason = part.finish_reason
            if self._space and not self.segments:  # the whole answer
                yield from self._grow("text", self._space)
            yield from self._end(whole=part.finish_reason != "length")

    def _grow(self, kind: Literal["text", "reasoning", "call"], text: str) -> Iterator[Step]:
        if self._open is None or self._open.kind != kind:
            yield from self._begin(kind)
        assert self._open is not None
        self._open.text += text
        yield Step("grow", self._open, text)

    def _begin(
        self, kind: Literal["text", "reasoning", "call"], *, name: str = "", call_id: str = ""
    ) -> Iterator[Step]:
        yield from self._end(whole=True)
        self._open = AnswerSegment(kind=kind, index=len(self.segments), name=name, call_id=call_id)
        self.segments.append(self._open)
        yield Step("begin", self._open)

    def _end(self, *, whole: bool) -> Iterator[Step]:
        if self._open is not None:
            self._open.whole = whole
            yield Step("end", self._open)
            self._open = None
