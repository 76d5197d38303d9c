"""Recognises requests by their tokens, for engines that show rows of a batch instead of named requests.

vLLM hands a proposer the tokens of every row and no request ids; rows move between steps, join, leave, are preempted
and come back. A request is recognised by its text: what a row held before this step's tokens is the text that one of
the known requests had after the last step. Requests of equal texts are interchangeable. Where an engine names its
requests, the name is used.
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

MISSED = 256  # tokens that a request may have gained in steps that were not shown
_COMPARED = 128  # tokens compared at the end of a text, and as many spread over the rest of it


@dataclass(frozen=True, slots=True, eq=False)
class EngineRow:
    """A request in one step of an engine.

    Attributes:
        tokens: Int32[T], prompt and output. May be a view of the engine's memory: it is read during the step only.
        fresh: how many of the last tokens this step committed; 0 where the prompt is still being read.
        maximum: the most tokens that may be drafted.
        key: the engine's name of the request; None if it gives none.
    """

    tokens: Int32
    fresh: int
    maximum: int
    key: Hashable | None = None


class Known(Generic[T]):
    """A request that was seen before: its text, and what the caller keeps for it.

    Attributes:
        held: the caller's.
        length: of the text.
        absent: steps since a row showed it; 0 while one does.
        slot: the row that last showed it.
        key: the engine's name of the request, or None.
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
        """Take the longer text that a row shows now; return the new tokens, a copy."""
        end = len(tokens)
        if end > len(self._text):
            self._text = np.concatenate([self._text[: self.length], np.empty(end + 1024, np.int32)])
        self._text[self.length : end] = tokens[self.length :]
        new = self._text[self.length : end].copy()
        self.length = end
        return new

    def continues_in(self, tokens: Int32) -> bool:
        """Return whether `tokens` begins with this text.

        Of a long text its last tokens and others spread over it are compared, so that the time is bounded. A request
        taken for another would cost it drafts, never text.
        """
        return self.length <= len(tokens) and bool(_agree(self._text, tokens, self.length))


class KnownRequests(Generic[T]):
    """All known requests.

    A request that no row shows may have been preempted, or left out of a step; it is kept for `patience` steps, and of
    such requests at most `max_absent`, then it is given back as finished. Everything is counted in steps and tokens,
    so all ranks of an engine decide the same.
    """

    def __init__(self, *, patience: int = 32, max_absent: int = 64) -> None:
        self._patience, self._max_absent = patience, max_absent
        self._all: list[Known[T]] = []  # in the order in which they were first seen
        _agree(np.zeros(1, np.int32), np.zeros(1, np.int32), 1)  # load the compiled kernel before the first request

    def __len__(self) -> int:
        return len(self._all)

    def match(self, rows: Sequence[EngineRow]) -> list[Known[T] | None]:
        """Return the request that each row shows, None for those not seen before; one request for one row."""
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
        """Return a new request that a row shows."""
        known = Known(row, slot, held)
        self._all.append(known)
        return known

    def drop_absent(self) -> list[T]:
        """Forget requests that have not been shown for too long; return what was held for them, oldest first."""
        absent = [known for known in self._all if known.absent]
        late = {id(known) for known in absent if known.absent > self._patience}
        if len(absent) - len(late) > self._max_absent:
            longest = sorted(absent, key=lambda known: -known.absent)
            late |= {id(known) for known in longest[: len(absent) - self._max_absent]}
        return self._drop(late) if late else []

    def drop(self, known: Known[T]) -> T:
        """Forget a request; return what was held for it."""
        return self._drop({id(known)})[0]

    def drop_all(self) -> list[T]:
        """Forget all requests; return what was held for them."""
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
