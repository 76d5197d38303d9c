"""The text of one request, indexed for finding earlier matches of its end.

Copying drafters look for the longest earlier match of the last tokens, preferring the most recent one. Each position is
linked to the previous position of the same token, so a search visits only the occurrences of the last token: it takes
microseconds in 32,000 tokens, with no bound on the length of the match.

A copy that reaches the end of the text continues in itself, as in Lempel-Ziv coding (Ziv and Lempel, 1977), so periodic
text is drafted beyond one period.

The probability that a copied token is accepted depends mainly on how many tokens before it agree. Each session
estimates it: `new_rates` returns the prior counts, and `rate_copy` updates them with the outcome of each draft.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
from numba import njit

from speculant.core.drafter import EMPTY_PATH, Budget, Session, Verified
from speculant.core.tree import Array, DraftTree, Int32

LONGEST_RATED = 16  # matches of at least this many tokens share one rate
_FIRST_CAPACITY = 1024
_ROOM = 256  # spare entries after the text, where kernels may write draft tokens
_PRIOR_TRIALS = 4.0


class Context:
    """A growing text.

    Attributes:
        text: Int32[C]; the first `length` entries are the text.
        previous: Int32[C], the nearest earlier position of the same token (or of one in the same bucket), -1 if none.
        latest: Int32[B], the latest position of each bucket of tokens.
        length: T, number of tokens.
    """

    __slots__ = ("latest", "length", "previous", "text")

    def __init__(self, prompt: Int32, vocabulary: int) -> None:
        """Index a prompt, Int32[T]; `vocabulary` is V, the number of token ids."""
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

    @contextlib.contextmanager
    def ahead(self, tokens: Sequence[int]) -> Iterator[None]:
        """Append tokens temporarily, inside a `with` block."""
        start = self.length
        self.append(np.array(tokens, np.int32))
        try:
            yield
        finally:
            for position in range(self.length - 1, start - 1, -1):
                self.latest[self.text[position] % len(self.latest)] = self.previous[position]
            self.length = start


def warm_up(session: Session) -> None:
    """Run two rounds on a scratch session, so that the first request does not wait for compiled kernels to load."""
    top_ids = np.zeros((1, 1), np.int32)
    for _ in range(2):
        session.propose(Budget(nodes=1, depth=1))
        session.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=top_ids[0], top_ids=top_ids))


def new_rates() -> Array:
    """Return Float64[2, 17]: correct copied tokens and all copied tokens, by the number of agreeing tokens before them.

    The prior is four copied tokens for each number n of agreeing tokens, of which the fraction (n + 0.1) / (n + 2) was
    correct: close to what was measured on a quarter of the development requests.
    """
    agreed = np.arange(LONGEST_RATED + 1)
    trials = np.full(LONGEST_RATED + 1, _PRIOR_TRIALS)
    return np.stack([trials * (agreed + 0.1) / (agreed + 2), trials])


@njit(cache=True, nogil=True)
def link(text: Array, previous: Array, latest: Array, length: int, tokens: Array) -> None:
    """Append tokens to the text and link each to the previous position in its bucket."""
    for i in range(len(tokens)):
        bucket = tokens[i] % len(latest)
        text[length + i] = tokens[i]
        previous[length + i] = latest[bucket]
        latest[bucket] = length + i


@njit(cache=True, nogil=True, inline="always")
def agreement(text: Array, early: int, late: int, maximum: int) -> int:
    """Return how many tokens up to and including two positions agree, at most `maximum`."""
    n = 0
    maximum = min(maximum, early + 1)
    while n < maximum and text[early - n] == text[late - n]:
        n += 1
    return n


@njit(cache=True, nogil=True, inline="always")
def longest_match(
    text: Array, previous: Array, nearest: int, end: int, shortest: int, longest: int, reach: int
) -> tuple[int, int]:
    """Return where the longest earlier match of the text up to `end` ends, and its length; (-1, 0) if none.

    Args:
        text, previous: arrays of a context; `text[end]` may be a drafted token after its end.
        nearest: first earlier position in the bucket of `text[end]`.
        end: position of the last token to be matched.
        shortest: shorter matches are ignored.
        longest: longer matches count as equally long; among equals the most recent wins.
        reach: maximum number of positions examined, most recent first.
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
def copy_token(text: Array, length: int, match: int, depth: int) -> int:
    """Return the token at a depth (0 for the first) of a copy that starts after `match`; it may continue in itself."""
    return text[match + 1 + depth % (length - 1 - match)]


@njit(cache=True, nogil=True, inline="always")
def rate(rates: Array, agreed: int) -> float:
    """Return the fraction of copied tokens that were correct after `agreed` agreeing tokens."""
    agreed = min(agreed, rates.shape[1] - 1)
    return rates[0, agreed] / rates[1, agreed]


@njit(cache=True, nogil=True)
def rate_copy(rates: Array, text: Array, length: int, match: int, agreed: int, tokens: Array) -> None:
    """Count how far a copy that starts after `match` agreed with the committed tokens, Int32[A]."""
    for depth in range(len(tokens)):
        kind = min(agreed + depth, rates.shape[1] - 1)
        rates[1, kind] += 1
        if copy_token(text, length, match, depth) != tokens[depth]:
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
    place = np.full(len(tokens) + 1, -1, np.int32)  # the root's -1 indexes the spare last entry
    for i in range(len(order)):
        place[order[i]] = i
    return tokens[order].astype(np.int32), place[parents[order]], weights[order].astype(np.float32)
