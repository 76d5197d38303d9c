"""An answer as a row of segments, one after the other: reasoning, text and tool calls, as typed streams have them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from speculant.serving.turns import Part


@dataclass(slots=True, kw_only=True)
class Segment:
    """A piece of an answer that is of one kind.

    Attributes:
        kind: what it is.
        index: its place in the answer.
        text: so far; of a call, its arguments in JSON.
        name, call_id: of a call.
        whole: whether it has ended as it should; a call that was cut has not.
    """

    kind: Literal["text", "reasoning", "call"]
    index: int
    text: str = ""
    name: str = ""
    call_id: str = ""
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """What happened to a segment: it began, it grew by a text, or it ended."""

    kind: Literal["begin", "grow", "end"]
    segment: Segment
    text: str = ""


class Segmenter:
    """Divides one answer's parts into segments.

    Space before the first word of a text is held back: between calls it is no text of its own.

    Attributes:
        segments: so far.
        finish_reason: of the answer, once it has ended.
    """

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.finish_reason: str | None = None
        self._open: Segment | None = None
        self._space = ""

    def push(self, part: Part) -> Iterator[Step]:
        """Yield what a part does."""
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
        self._open = Segment(kind=kind, index=len(self.segments), name=name, call_id=call_id)
        self.segments.append(self._open)
        yield Step("begin", self._open)

    def _end(self, *, whole: bool) -> Iterator[Step]:
        if self._open is not None:
            self._open.whole = whole
            yield Step("end", self._open)
            self._open = None
