"""What followed the last token earlier in the same request.

The rows of contexts are shared by all requests and forget quickly; a document's own phrases are a better guide to how
it continues (cache models: Kuhn and De Mori 1990). Positions of the same token are linked, so that the latest ones are
found without a search.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from speculant.core.tree import Array

OCCURRENCES = 16  # latest occurrences of the last token that are used
NEVER = -1


class History(NamedTuple):
    """The committed text of a request.

    Attributes:
        text: Int32[>= length].
        length: length of the text.
        last_use: Int32[V], position of each token's last use, or NEVER.
        links: Int32[>= length], at each position, the position of the previous use of the same token, or NEVER.
    """

    text: Array
    length: int
    last_use: Array
    links: Array


@njit(cache=True, nogil=True, inline="always")
def add_use(last_use: Array, links: Array, token: int, i: int) -> None:
    """Record that `token` is at position i."""
    links[i] = last_use[token]
    last_use[token] = i


@njit(cache=True, nogil=True)
def followers(history: History, token: int, unit: int, tokens: Array, weights: Array, line: int) -> int:
    """Write the tokens that followed the latest occurrences of `token` into a line; return their number.

    The most recent one comes first; each occurrence adds a weight of `unit`.
    """
    if token == NEVER:
        return 0
    place, occurrences, length = np.int64(history.last_use[token]), 0, 0
    while place != NEVER and occurrences < OCCURRENCES:
        if place + 1 < history.length:
            follower, k = np.int64(history.text[place + 1]), 0
            while k < length and tokens[line, k] != follower:
                k += 1
            if k == length:
                tokens[line, k], weights[line, k] = follower, 0
                length += 1
            weights[line, k] += unit
            occurrences += 1
        place = np.int64(history.links[place])
    return length
