"""The match model: find an earlier occurrence of the text's last tokens in the same request, and follow it.

Long repetitions mostly copy the request's own prompt and output, so this index belongs to the request and uses none of
the drafter's memory (match models: PAQ compressors, Mahoney 2005; prompt lookup, Saxena 2023). A repetition is found by
the latest earlier occurrence of the last three tokens; while it continues, it is followed and its length counted.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from speculant.core.tree import Array

SHORTEST = 3
NOWHERE = -1
LENGTHS = 10  # number of bins for lengths


@njit(cache=True, nogil=True, inline="always")
def _slot(heads: Array, a: int, b: int, c: int) -> int:
    hashed = (np.uint64(a) * np.uint64(0x9E3779B97F4A7C15)) ^ (np.uint64(b) * np.uint64(0xD6E8FEB86659FD93))
    hashed = (hashed ^ np.uint64(c + 1)) * np.uint64(0xC2B2AE3D27D4EB4F)
    return np.int64((hashed ^ (hashed >> np.uint64(31))) & np.uint64(len(heads) - 1))


@njit(cache=True, nogil=True)
def index(heads: Array, text: Array, i: int) -> None:
    """Record in heads, Int32[2 ** h], that text[i] followed the three tokens before it."""
    if i >= SHORTEST:
        heads[_slot(heads, text[i - 3], text[i - 2], text[i - 1])] = i


@njit(cache=True, nogil=True)
def seek(heads: Array, text: Array, window: Array) -> tuple[int, int]:
    """Return the position after an earlier occurrence of the last tokens of window, Int32[W], and how many match.

    The position is NOWHERE if fewer than three match.
    """
    size = len(window)
    if size < SHORTEST:
        return NOWHERE, 0
    place = np.int64(heads[_slot(heads, window[size - 3], window[size - 2], window[size - 1])])
    length = 0
    while length < size and place - 1 - length >= 0 and text[place - 1 - length] == window[size - 1 - length]:
        length += 1
    return (place, length) if length >= SHORTEST else (NOWHERE, 0)


@njit(cache=True, nogil=True, inline="always")
def length_band(length: int) -> int:
    """Return the bin of a length: 3, 4, 5, 6, 7-8, 9-11, 12-15, 16-23, 24-31, 32 or more."""
    if length <= 6:
        return length - SHORTEST
    return 4 + (length > 8) + (length > 11) + (length > 15) + (length > 23) + (length > 31)
