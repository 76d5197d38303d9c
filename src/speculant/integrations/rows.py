"""Recognises requests by their tokens, for engines that show rows of a batch instead of named requests.

vLLM passes a proposer the tokens of every row but no request ids; rows move between steps, join, leave, are preempted
and come back. A request is recognised by its text: a row's tokens before this step are the text of a known request
after the previous step. Requests with equal texts are interchangeable. If an engine names its requests, the name is
used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numba import njit

from speculant.core.tree import Int32

T = TypeVar("T")

MISSED = 256  # maximum tokens that a request may gain in steps that are not shown
_COMPARED = 128  # tokens compared at the end of a text, and the same number spread over the rest


@dataclass(frozen=True, slots=True, eq=False)
class EngineRow:
    """A request in one step of an engine.

    Attributes:
        tokens: Int32[T], prompt and output. May be a view of the engine's memory: it is only read during the step.
        fresh: number of the last tokens that this step committed; 0 while the prompt is being read.
        maximum: maximum number of drafted tokens.
        key: the engine's name for the request; None if it has none.
    """

    tokens: Int32
    fresh: int
    maximum: int
    key: Hashable | None = None


class Known(Generic[T]):
    """A known request: its text, and the caller's data for it.

    Attributes:
        held: the caller's data.
        length: length of the text.
        absent: number of steps since a row last showed it; 0 while one does.
        slot: the row that last showed it.
        key: the engine's name for the request, or None.
    """

    __slots__ = ("_text", "absent", "held", "key", "length", "slot")

    def __init__(self, row: EngineRow, slot: int, held: T) -> None:
        self._text = np.empty(len(row.tokens) + 1024, np.int32)
        self.held, self.slot, self.key = held, slot, row.key
        self.length = self.absent = 0
        self.extend(row.tokens)

    @property
    def text(self) -> Int32:
        """Int32[T], prompt and output; a view."""
        return self._text[: self.length]

    def extend(self, tokens: Int32) -> Int32:
        """Extend the text to the longer one of a row; return a copy of the new tokens."""
        end = len(tokens)
        if end > len(self._text):
            self._text = np.concatenate([self._text[: self.length], np.empty(end + 1024, np.int32)])
        self._text[self.length : end] = tokens[self.length :]
        new = self._text[self.length : end].copy()
        self.length = end
        return new

    def continues_in(self, tokens: Int32) -> bool:
        """Return whether `tokens` starts with this text.

        For a long text, its last tokens and others spread over it are compared, to bound the time. Mistaking a request
        for another would only cost drafts, never text.
        """
        return self.length <= len(tokens) and bool(_agree(self._text, tokens, self.length))


class KnownRequests(Generic[T]):
    """All known requests.

    A request that no row shows may have been preempted, or left out of a step; it is kept for `patience` steps, with at
    most `max_absent` such requests, and then returned as finished. Everything is counted in steps and tokens, so all
    ranks of an engine decide the same.
    """

    def __init__(self, *, patience: int = 32, max_absent: int = 64) -> None:
        self._patience, self._max_absent = patience, max_absent
        self._all: list[Known[T]] = []  # in order of first appearance
        _agree(np.zeros(1, np.int32), np.zeros(1, np.int32), 1)  # load the compiled kernel before the first request

    def __len__(self) -> int:
        return len(self._all)

    def match(self, rows: Sequence[EngineRow]) -> list[Known[T] | None]:
        """Return the request that each row shows; None for new ones. A request matches only one row."""
        slots = {known.slot: known for known in self._all if not known.absent}
        keys = {known.key: known for known in self._all if known.key is not None}
        lengths: dict[int, list[Known[T]]] = defaultdict(list)
        for known in self._all:
            known.absent += 1
            lengths[known.length].append(known)
        found: list[Known[T] | None] = [None] * len(rows)
        for i, row in enumerate(rows):
            before = len(row.tokens) - row.fresh
            known_here = keys.get(row.key) if row.key is not None else slots.get(i)
            if known_here is None or not known_here.absent:
                continue
            expected = row.key is not None or known_here.length == before
            if expected and known_here.continues_in(row.tokens):
                found[i] = _format_slot(known_here, i)
        for i, row in enumerate(rows):
            if found[i] is None and row.key is None:
                found[i] = self._elsewhere(row, i, lengths)
        return found

    def add(self, row: EngineRow, slot: int, held: T) -> Known[T]:
        """Add and return a new request shown by a row."""
        known = Known(row, slot, held)
        self._all.append(known)
        return known

    def drop_absent(self) -> list[T]:
        """Drop requests that were not shown for too long; return their data, oldest first."""
        absent = [known for known in self._all if known.absent]
        late = {id(known) for known in absent if known.absent > self._patience}
        if len(absent) - len(late) > self._max_absent:
            longest = sorted(absent, key=lambda known: -known.absent)
            late |= {id(known) for known in longest[: len(absent) - self._max_absent]}
        return self._drop(late) if late else []

    def drop(self, known: Known[T]) -> T:
        """Drop a request; return its data."""
        return self._drop({id(known)})[0]

    def drop_all(self) -> list[T]:
        """Drop all requests; return their data."""
        return self._drop({id(known) for known in self._all})

    def absent(self) -> list[Known[T]]:
        """Return the requests that the last step did not show."""
        return [known for known in self._all if known.absent]

    def _drop(self, which: set[int]) -> list[T]:
        gone = [known.held for known in self._all if id(known) in which]
        self._all = [known for known in self._all if id(known) not in which]
        return gone

    def _elsewhere(self, row: EngineRow, slot: int, lengths: dict[int, list[Known[T]]]) -> Known[T] | None:
        """Return the request of a row that moved, came back or was not shown for some steps."""
        for known in lengths.get(len(row.tokens) - row.fresh, ()):
            if known.absent and known.key is None and known.continues_in(row.tokens):
                return _format_slot(known, slot)
        shorter = [
            known
            for known in self._all
            if known.absent and known.key is None and 0 <= len(row.tokens) - row.fresh - known.length <= MISSED
        ]
        for known in sorted(shorter, key=lambda known: -known.length):
            if known.continues_in(row.tokens):
                return _format_slot(known, slot)
        return None


def _format_slot(known: Known[T], slot: int) -> Known[T]:
    known.absent, known.slot = 0, slot
    return known


@njit(cache=True, nogil=True)
def _agree(text: Int32, tokens: Int32, length: int) -> bool:
    rest = max(0, length - _COMPARED)
    for i in range(length - 1, rest - 1, -1):
        if text[i] != tokens[i]:
            return False
    i, stride = 0, max(1, rest // _COMPARED)
    while i < rest and text[i] == tokens[i]:
        i += stride
    return i >= rest
