"""The text of one request, indexed so that earlier places that read like its end are found at once.

Drafters that copy look for the longest earlier match of the last tokens, the most recent one first. Each position
is linked to the one before it that holds the same token, so a search visits only the places where the last token
stood: microseconds in 32,000 tokens, without a bound on the match.

A copy that reaches the end of the text goes on in itself, as in Lempel-Ziv coding (Ziv and Lempel, 1977), so text
with a period is drafted beyond one period.

How likely a copied token is right depends above all on how many tokens before it agree; `new_rates` begins a count of
that, which a session keeps from what it copied and what the target said.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from speculant.core.drafter import EMPTY_PATH, Needs, Session, Verified
from speculant.core.errors import UnsupportedError
from speculant.core.tree import DraftTree, Int32

Array = npt.NDArray[Any]

LONGEST_RATED = 16  # matches of this many tokens or more are rated alike
_FIRST_CAPACITY = 1024
_ROOM = 256  # kernels may write that much of a draft behind the text
_PRIOR_TRIALS = 4.0


class Context:
    """A text that grows.

    Attributes:
        text: Int32[C], of which the first `length` are the text.
        previous: Int32[C], the nearest earlier position of the same token (or of one in the same bucket), -1 if none.
        latest: Int32[B], the last position of each bucket of tokens.
        length: T, tokens so far.
    """

    __slots__ = ("latest", "length", "previous", "text")

    def __init__(self, prompt: Int32, vocabulary: int) -> None:
        """Index a prompt Int32[T]; `vocabulary` is V, the number of token ids."""
        capacity = max(_FIRST_CAPACITY, 2 * len(prompt)) + _ROOM
        self.text, self.previous = np.zeros(capacity, np.int32), np.full(capacity, -1, np.int32)
        self.latest = np.full(max(vocabulary, 1), -1, np.int32)
        self.length = 0
        self.append(prompt)

    def append(self, tokens: Int32) -> None:
        """Add tokens Int32[A]."""
        needed = self.length + len(tokens) + _ROOM
        if needed > len(self.text):
            self.text, self.previous = (
                np.concatenate([array, np.zeros(needed, np.int32)]) for array in (self.text, self.previous)
            )
        link(self.text, self.previous, self.latest, self.length, np.ascontiguousarray(tokens, np.int32))
        self.length += len(tokens)


class RequestDrafter:
    """What drafters share that know only the text of the request at hand.

    Attributes:
        name: of the method.
        memory_bytes: what is kept between requests.
    """

    name = ""
    memory_bytes = 0

    @property
    def needs(self) -> Needs:
        """Nothing of the target."""
        return Needs()

    def save(self, path: Path) -> None:
        """Refuse: nothing is kept between requests.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(f"the method '{self.name}' keeps no memory; there is nothing to save. Use 'mix'.")

    def load(self, path: Path) -> None:
        """Refuse: there is no memory to begin with.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(f"the method '{self.name}' keeps no memory; leave out the memory file, or use 'mix'.")


def warm_up(session: Session) -> None:
    """Run two rounds on a scratch session, so that the first request does not wait for the kernels to be loaded."""
    best = np.zeros((1, 1), np.int32)
    for _ in range(2):
        session.propose(1)
        session.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=best[0], top_ids=best))


def new_rates() -> Array:
    """Return Float64[2, 17]: copied tokens that were right, and all of them, by the tokens that agreed before.

    The counts begin as if four copies of each kind had been seen, of which the share (n + 0.1) / (n + 2) was right:
    about what was counted in a quarter of the development requests.
    """
    agreed = np.arange(LONGEST_RATED + 1)
    trials = np.full(LONGEST_RATED + 1, _PRIOR_TRIALS)
    return np.stack([trials * (agreed + 0.1) / (agreed + 2), trials])


@njit(cache=True, nogil=True)
def link(text: Array, previous: Array, latest: Array, length: int, tokens: Array) -> None:
    """Write tokens behind the text and link them to their like."""
    for i in range(len(tokens)):
        bucket = tokens[i] % len(latest)
        text[length + i] = tokens[i]
        previous[length + i] = latest[bucket]
        latest[bucket] = length + i


@njit(cache=True, nogil=True, inline="always")
def agreement(text: Array, early: int, late: int, most: int) -> int:
    """Return how many tokens agree before and at two positions, at most `most`."""
    n = 0
    most = min(most, early + 1)
    while n < most and text[early - n] == text[late - n]:
        n += 1
    return n


@njit(cache=True, nogil=True, inline="always")
def longest_match(
    text: Array, previous: Array, nearest: int, end: int, shortest: int, longest: int, reach: int
) -> tuple[int, int]:
    """Return where the longest earlier match of the text up to `end` ends, and its length; (-1, 0) if none.

    Args:
        text, previous: of a context; `text[end]` may be a drafted token behind it.
        nearest: the first earlier position in the bucket of `text[end]`.
        end: position of the last token to be matched.
        shortest: shorter matches are none.
        longest: longer ones are not told apart: the most recent is taken.
        reach: places looked at, most recent first.
    """
    at, size = -1, shortest - 1
    while nearest >= 0 and reach > 0 and size < longest:
        n = agreement(text, nearest, end, longest)
        if n > size:
            at, size = nearest, n
        nearest = previous[nearest]
        reach -= 1
    return (at, size) if at >= 0 else (-1, 0)


@njit(cache=True, nogil=True, inline="always")
def copied(text: Array, length: int, match: int, depth: int) -> int:
    """Return the token that a copy from behind `match` has at a depth, 0 for the first; the text repeats itself."""
    return text[match + 1 + depth % (length - 1 - match)]


@njit(cache=True, nogil=True, inline="always")
def rate(rates: Array, agreed: int) -> float:
    """Return the share of copied tokens that were right where that many before agreed."""
    agreed = min(agreed, rates.shape[1] - 1)
    return rates[0, agreed] / rates[1, agreed]


@njit(cache=True, nogil=True)
def rate_copy(rates: Array, text: Array, length: int, match: int, agreed: int, tokens: Array) -> None:
    """Count how far a copy from behind `match` agreed with what was committed, tokens Int32[A]."""
    for depth in range(len(tokens)):
        kind = min(agreed + depth, rates.shape[1] - 1)
        rates[1, kind] += 1
        if copied(text, length, match, depth) != tokens[depth]:
            break
        rates[0, kind] += 1


@njit(cache=True, nogil=True)
def heaviest_first(tokens: Array, parents: Array, weights: Array, limit: int) -> tuple[Array, Array, Array]:
    """Return the `limit` heaviest of N nodes, heaviest first: Int32, Int32, Float32.

    Nodes of equal weight keep their order, so parents stay before their children.
    """
    order = np.arange(len(tokens))
    for i in range(1, len(order)):
        at = i
        while at > 0 and weights[order[at - 1]] < weights[i]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = i
    order = order[:limit]
    place = np.full(len(tokens) + 1, -1, np.int32)  # the root's -1 finds the spare last place
    for i in range(len(order)):
        place[order[i]] = i
    return tokens[order].astype(np.int32), place[parents[order]], weights[order].astype(np.float32)
