"""Decontamination: finds texts that share a token n-gram with texts that must not be learned.

A benchmark is contaminated if a drafter has learned from its texts or quotations of them. Shared 13-grams are the usual
test (Brown et al., arXiv 2005.14165, appendix C).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

LENGTH = 13

_Hashes = npt.NDArray[np.uint64]


class NgramSet:
    """A set of n-grams as 64-bit hashes: 8 bytes each; a false match has a probability of len(self) / 2**64."""

    def __init__(self, length: int = LENGTH) -> None:
        """Start empty.

        Args:
            length: number of tokens of an n-gram.
        """
        self.length = length
        self._hashes: _Hashes = np.zeros(0, np.uint64)
        self._added: list[_Hashes] = []
        generator = np.random.default_rng(length)
        self._factors = generator.integers(0, 2**64, length, np.uint64, endpoint=False) | np.uint64(1)

    def __len__(self) -> int:
        self._settle()
        return len(self._hashes)

    def add(self, ids: Sequence[int] | npt.NDArray[np.integer]) -> None:
        """Add the n-grams of a text, Int[T]; a text shorter than an n-gram has none."""
        self._added.append(self._hash(ids))

    def remove(self, ids: Sequence[int] | npt.NDArray[np.integer]) -> None:
        """Remove the n-grams of a text, Int[T]; those that are not in the set are ignored."""
        self._settle()
        self._hashes = np.setdiff1d(self._hashes, self._hash(ids))

    def shares(self, ids: Sequence[int] | npt.NDArray[np.integer]) -> bool:
        """Return whether a text, Int[T], contains one of the n-grams."""
        self._settle()
        hashes = self._hash(ids)
        if not len(self._hashes) or not len(hashes):
            return False
        places = np.searchsorted(self._hashes, hashes)
        return bool((self._hashes[np.minimum(places, len(self._hashes) - 1)] == hashes).any())

    def _settle(self) -> None:
        if self._added:
            self._hashes = np.unique(np.concatenate([self._hashes, *self._added]))
            self._added = []

    def _hash(self, ids: Sequence[int] | npt.NDArray[np.integer]) -> _Hashes:
        tokens = _mix(np.asarray(ids, np.int64).astype(np.uint64))
        count = len(tokens) - self.length + 1
        found = np.zeros(max(0, count), np.uint64)
        for place, factor in enumerate(self._factors):
            found += tokens[place : place + max(0, count)] * factor
        return found


def _mix(values: _Hashes) -> _Hashes:
    """Mix the bits of small numbers with the finaliser of SplitMix64 (Steele et al., OOPSLA 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
