"""What followed the last token earlier in the same request.

The rows of contexts are shared by all requests and forget fast; a document's own phrases are a better guide to what it
goes on with (cache models: Kuhn and De Mori 1990). Positions of the same token are linked, so that the latest ones are
found without a search.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

Array = npt.NDArray[Any]

OCCURRENCES = 16  # of the last token, the latest ones
NEVER = -1


class History(NamedTuple):
    """The committed text of a request.

    Attributes:
        text: Int32[>= length].
        length: of the text.
        last_use: Int32[V], the position of each token's last use, NEVER if none.
        links: Int32[>= length], at each position that of the use before of the same token, NEVER if none.
    """

    text: Array
    length: int
    last_use: Array
    links: Array


@njit(cache=True, nogil=True, inline="always")
def add_use(last_use: Array, links: Array, token: int, i: int) -> None:
    """Record that `token` stands at position i."""
    links[i] = last_use[token]
    last_use[token] = i


@njit(cache=True, nogil=True)
def followers(history: History, token: int, unit: int, tokens: Array, weights: Array, line: int) -> int:
    """Write what followed the latest occurrences of a token into a line of tokens and weights; return how many.

    The latest comes first; each occurrence weighs `unit`.
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
