"""Suffix arrays over a corpus, built block by block in bounded memory and searched memory-mapped.

The datastore of REST (He, Zhong, Cai, Lee, He: "REST: Retrieval-Based Speculative Decoding", NAACL 2024, arXiv
2311.08252, section 3.2), after Manber and Myers (1993): the positions of a text, sorted by the suffixes that start
there. Blocks of some million tokens are sorted one at a time, by prefix doubling from three tokens to 24, the longest
context that is searched for; they take 8 bytes per token. Every document ends with END, which sorts below every token,
so that no search runs past it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from speculant.core.errors import UnsupportedError
from speculant.core.tree import Array, Int32
from speculant.drafters.suffix.history import END

BLOCK = 4 << 20
SORTED = 24  # number of tokens by which suffixes are sorted
MAX_VOCABULARY = (1 << 21) - 2
_BITS = 21


class CorpusBlock(NamedTuple):
    """A block of a corpus.

    Attributes:
        tokens: Int32[T], documents, each followed by END.
        places: Int32[T], the positions in the block, sorted by the suffixes that start there.
    """

    tokens: Array
    places: Array

    @property
    def nbytes(self) -> int:
        """Size on disk in bytes."""
        return self.tokens.nbytes + self.places.nbytes


def sort_suffixes(tokens: Int32) -> Int32:
    """Return the positions of tokens Int32[T], sorted by the 24 tokens that start there, then by position."""
    padded = np.concatenate([tokens, np.full(2, END, np.int32)]).astype(np.int64) + 1
    keys = padded[:-2] << 2 * _BITS | padded[1:-1] << _BITS | padded[2:]
    known = 3
    while True:
        if known >= SORTED:
            return np.argsort(keys, kind="stable").astype(np.int32)
        order = np.argsort(keys)  # equal keys get equal ranks, so their order does not matter
        keys = keys[order]
        steps = np.cumsum(np.append(1, keys[1:] != keys[:-1]), dtype=np.int64) if len(keys) else keys
        keys[order] = steps << 32
        keys[: max(0, len(keys) - known)] |= keys[known:] >> 32
        known *= 2


class SuffixArrayBuilder:
    """Sorts a corpus block by block and stores finished blocks on disk.

    Attributes:
        tokens: number of tokens added.
    """

    def __init__(self, vocabulary: int, folder: Path, *, block: int = BLOCK) -> None:
        """Start empty.

        Args:
            vocabulary: V, the number of token ids.
            folder: directory for finished blocks until they are written to one file.
            block: maximum tokens per block; sorting takes about 60 bytes per token.

        Raises:
            UnsupportedError: the vocabulary has more ids than a suffix array can hold.
        """
        if vocabulary > MAX_VOCABULARY:
            raise UnsupportedError(f"a suffix array holds token ids below {MAX_VOCABULARY}, not {vocabulary}.")
        self.vocabulary = vocabulary
        self.tokens = 0
        self._folder, self._block = folder, block
        self._pending: list[Int32] = []
        self._waiting = 0
        self._done = 0

    def add(self, ids: Any) -> None:
        """Add a document of ids, Int[T]; if it does not fit into the current block, it is split.

        Raises:
            ValueError: an id lies outside the vocabulary.
        """
        ids = np.asarray(ids, np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.vocabulary:
            raise ValueError(f"ids must be from 0 to {self.vocabulary - 1}")
        self.tokens += len(ids)
        while len(ids):
            piece = ids[: self._block - self._waiting - 1]
            ids = ids[len(piece) :]
            self._pending.append(np.append(piece, END).astype(np.int32))
            self._waiting += len(piece) + 1
            if self._waiting >= self._block - 1:
                self._finish()

    def blocks(self) -> list[CorpusBlock]:
        """Return all blocks, memory-mapped."""
        self._finish()
        return [
            CorpusBlock(*(np.load(self._folder / f"{name}-{i}.npy", mmap_mode="r") for name in CorpusBlock._fields))
            for i in range(self._done)
        ]

    def _finish(self) -> None:
        if not self._waiting:
            return
        tokens = np.concatenate(self._pending)
        self._pending, self._waiting = [], 0
        np.save(self._folder / f"tokens-{self._done}.npy", tokens)
        np.save(self._folder / f"places-{self._done}.npy", sort_suffixes(tokens))
        self._done += 1


@njit(cache=True, nogil=True)
def _first(block: CorpusBlock, pattern: Array, after: bool) -> int:
    """Return the first rank whose suffix is not below the pattern, or with `after`, above all that start with it."""
    tokens, places = block
    low, high = 0, len(places)
    while low < high:
        middle = (low + high) >> 1
        place, order = places[middle], 0
        for i in range(len(pattern)):
            token = tokens[place + i]
            if token != pattern[i]:
                order = -1 if token < pattern[i] else 1
                break
        if order < 0 or (after and order == 0):
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def longest_match(block: CorpusBlock, context: Array, shortest: int) -> tuple[int, int, int]:
    """Return the length of the context's longest suffix in the block, and the first and end rank of its occurrences.

    The context has at most 24 tokens. The length is 0 if no suffix of at least `shortest` tokens occurs.
    """
    total = len(context)
    found, begin, end = 0, 0, 0
    low, high = shortest, total
    while low <= high:  # binary search: a suffix occurs wherever a longer one does
        length = (low + high) >> 1 if found else low
        first = _first(block, context[total - length :], False)
        last = _first(block, context[total - length :], True)
        if first < last:
            found, begin, end, low = length, first, last, length + 1
        else:
            high = length - 1
    return found, begin, end


@njit(cache=True, nogil=True)
def continuations(block: CorpusBlock, begin: int, end: int, length: int, rows: Array) -> None:
    """Fill rows Int32[R, C] with the continuations of R evenly spaced occurrences, padded with END.

    Args:
        block: block of the corpus.
        begin, end: range of ranks of the occurrences; at least R.
        length: length of the match in tokens.
        rows: output array.
    """
    tokens, places = block
    count = len(rows)
    for r in range(count):
        place = places[begin + r * (end - begin) // count] + length
        open_ = True
        for i in range(rows.shape[1]):
            open_ = open_ and tokens[place + i] != END
            rows[r, i] = tokens[place + i] if open_ else END
