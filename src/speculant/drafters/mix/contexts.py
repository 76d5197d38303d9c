"""The contexts that `mix` looks up: suffixes of several lengths, one with a gap, and one of frequent tokens only.

Suffixes of one to six tokens are the contexts of PPM (Cleary and Witten 1984). The gap context is the second-to-last
token, regardless of the last: it helps where the last token has not been seen in this position. The skeleton of
function words and punctuation treats all rare tokens as the same. Both are common in the PAQ family of compressors
(Mahoney 2005).

Rows of single-token contexts are wide, the others narrow. A long context gets a row only if the context one step
shorter already has one, since most never recur. The last two contexts store the target's own top tokens at every row of
its passes, including rejected nodes (after Token Recycling, Luo et al. 2024, arXiv 2408.08696).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from speculant.core.tree import Array

ORDERS = 5  # contexts 0 to 4: the last 1, 2, 3, 4 and 6 tokens
SKIP, SKELETON, TARGET_ONE, TARGET_TWO = 5, 6, 7, 8
CONTEXTS = 9
LEARNED = 7  # the first contexts, whose rows are learned from committed text
WINDOW = 6  # length of the longest context
WIDE = (True, False, False, False, False, True, False, True, False)
SHORTER = (-1, -1, 1, 2, 3, -1, -1, -1, -1)  # a context gets a row only if this context has one; -1 for always

FREQUENT = 1024  # a token is frequent if it makes up more than one in this many tokens
_RARE = (1 << 21) - 1
_SKELETON_LENGTH = 4
_KIND = 32  # seeds of contexts lie above the bits of a token, so that no token hashes to another context's seed


@njit(cache=True, nogil=True, inline="always")
def _mix(hashed: np.uint64, token: int) -> np.uint64:
    hashed = (hashed ^ np.uint64(token + 1)) * np.uint64(0x9E3779B97F4A7C15)
    return hashed ^ (hashed >> np.uint64(32))


@njit(cache=True, nogil=True, inline="always")
def _spread(hashed: np.uint64) -> np.uint64:
    """Move differences to the high bits, which select the bucket."""
    return hashed * np.uint64(0xD6E8FEB86659FD93)


@njit(cache=True, nogil=True)
def hash_contexts(window: Array, length: int, frequency: Array, hashes: Array) -> None:
    """Hash each context of window[:length], Int32, latest token last; 0 where the text is too short for the context.

    `frequency` is Int64[V + 1], how often each token was seen; the last element is the sum.
    """
    hashes[:] = np.uint64(0)
    hashed = np.uint64(1 << _KIND)
    for distance in range(min(length, WINDOW)):
        hashed = _mix(hashed, window[length - 1 - distance])
        if distance < 4:
            hashes[distance] = _spread(hashed)
        elif distance == 5:
            hashes[4] = _spread(hashed)
    if length > 0:
        hashes[TARGET_ONE] = _spread(_mix(np.uint64(4 << _KIND), window[length - 1]))
    if length > 1:
        hashes[SKIP] = _spread(_mix(np.uint64(2 << _KIND), window[length - 2]))
        pair = _mix(_mix(np.uint64(5 << _KIND), window[length - 1]), window[length - 2])
        hashes[TARGET_TWO] = _spread(pair)
    if length >= _SKELETON_LENGTH:
        hashed = np.uint64(3 << _KIND)
        for distance in range(_SKELETON_LENGTH):
            token = window[length - 1 - distance]
            hashed = _mix(hashed, token if frequency[token] * FREQUENT > frequency[-1] else _RARE)
        hashes[SKELETON] = _spread(hashed)
