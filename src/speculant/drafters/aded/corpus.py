"""Counting the tri-grams of a corpus larger than memory, to build a drafter's initial table.

An n-gram is a UInt64 of three 21-bit ids; a bi-gram has the vocabulary size as its first id, which is how frozen tables
mark "no context". Documents are buffered, sorted and counted chunk by chunk; sorted runs of similar size are merged, so
each n-gram is merged a logarithmic number of times. Beyond a given number of distinct n-grams, the rarest are dropped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from speculant.core.errors import UnsupportedError
from speculant.drafters.aded.frozen import Frozen, freeze
from speculant.drafters.aded.rows import MAX_VOCABULARY, UNIT

UInt64 = npt.NDArray[np.uint64]
Int64 = npt.NDArray[np.int64]
Run = tuple[UInt64, Int64]

LONGEST_BIGRAM_ROW = 64
_BITS = 21
_ID = (1 << _BITS) - 1


class TrigramCounter:
    """Counts n-grams within documents, in memory bounded by the chunk size and the number of n-grams kept.

    Attributes:
        tokens: number of tokens added.
        floor: n-grams seen no more often than this may have been dropped; 0 if all were kept.
    """

    def __init__(self, vocabulary: int, *, chunk: int = 4 << 20, maximum: int = 16 << 20) -> None:
        """Start empty.

        Args:
            vocabulary: V, the number of token ids.
            chunk: number of tri-grams buffered before they are sorted; 16 bytes each.
            maximum: maximum number of distinct n-grams, including bi-grams; about 100 bytes each while the table is
                built.

        Raises:
            UnsupportedError: the vocabulary has more ids than a table can hold.
        """
        if vocabulary > MAX_VOCABULARY:
            raise UnsupportedError(f"the tri-gram table holds token ids below {MAX_VOCABULARY}, not {vocabulary}.")
        self.vocabulary = vocabulary
        self.tokens = 0
        self.floor = 0
        self._chunk, self._maximum = chunk, maximum
        self._pending: list[UInt64] = []
        self._waiting = 0
        self._runs: list[Run] = []

    @property
    def trigrams(self) -> int:
        """Number of distinct tri-grams counted so far, without bi-grams and dropped ones."""
        return int(np.searchsorted(self._merge_all()[0], np.uint64(self.vocabulary << 2 * _BITS)))

    def add(self, ids: Any) -> None:
        """Count a document of ids, Int[T]; no n-gram spans two documents.

        Raises:
            ValueError: an id lies outside the vocabulary.
        """
        ids = np.asarray(ids, np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.vocabulary:
            raise ValueError(f"ids must be from 0 to {self.vocabulary - 1}")
        self.tokens += len(ids)
        if len(ids) < 2:
            return
        ids = ids.astype(np.uint64)
        pairs = ids[:-1] << np.uint64(_BITS) | ids[1:]
        self._pending += [
            pairs | np.uint64(self.vocabulary << 2 * _BITS),
            pairs[1:] | ids[:-2] << np.uint64(2 * _BITS),
        ]
        self._waiting += len(ids)
        if self._waiting >= self._chunk:
            self._sort()

    def table(self) -> Frozen:
        """Return a table of all documents: at most 255 successors per context, 64 per bi-gram context."""
        keys, counts = self._merge_all()
        a, b, c = ((keys >> np.uint64(shift) & np.uint64(_ID)).astype(np.int64) for shift in (2 * _BITS, _BITS, 0))
        kept = np.concatenate(
            [np.arange(np.searchsorted(a, self.vocabulary)), _heaviest(a, b, counts, self.vocabulary)]
        )
        return freeze(a[kept], b[kept], c[kept], counts[kept] * UNIT, vocabulary=self.vocabulary)

    def _merge_all(self) -> Run:
        self._sort()
        while len(self._runs) > 1:
            self._merge()
        return self._runs[0] if self._runs else (np.empty(0, np.uint64), np.empty(0, np.int64))

    def _sort(self) -> None:
        if not self._pending:
            return
        keys, counts = np.unique(np.concatenate(self._pending), return_counts=True)
        self._pending, self._waiting = [], 0
        self._runs.append((keys, counts))
        while len(self._runs) > 1 and 2 * len(self._runs[-1][0]) > len(self._runs[-2][0]):
            self._merge()
        self._prune()

    def _merge(self) -> None:
        (keys, counts), (others, more) = self._runs.pop(), self._runs.pop()
        keys, counts = np.concatenate([keys, others]), np.concatenate([counts, more])
        order = np.argsort(keys, kind="stable")  # linear for two sorted runs
        keys, counts = keys[order], counts[order]
        starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        self._runs.append((keys[starts], np.add.reduceat(counts, starts)))

    def _prune(self) -> None:
        while sum(len(keys) for keys, _ in self._runs) > self._maximum:
            keys, counts = self._merge_all()
            self.floor += 1
            kept = counts > self.floor
            self._runs = [(keys[kept], counts[kept])]


def count_trigrams(table: Frozen) -> int:
    """Return the number of tri-grams in a table, without bi-grams."""
    contexts = int(table.first[-2])
    return int(table.length[:contexts].sum(dtype=np.int64))


def _heaviest(a: Int64, b: Int64, counts: Int64, vocabulary: int) -> Int64:
    """Return the indices of the most frequent successors in each bi-gram row; rows are sorted by `a`, then `b`."""
    begin = int(np.searchsorted(a, vocabulary))
    b, counts = b[begin:], counts[begin:]
    order = np.lexsort((-counts, b))
    first = np.searchsorted(b, b)  # start of each row, which sorting within rows does not move
    return begin + order[np.arange(len(b)) - first < LONGEST_BIGRAM_ROW]
