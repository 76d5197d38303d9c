"""Prompt lookup: copy what followed an earlier occurrence of the last tokens in the prompt or the output.

Yang et al.: "Inference with Reference: Lossless Acceleration of Large Language Models", 2023, arXiv 2304.04487 (LLMA),
and Saxena: "Prompt Lookup Decoding", 2023, whose settings are the defaults. The longest match of three down to one
token is copied from, the most recent one among equals; Saxena's code takes the first. The draft is a chain; with more
`branches`, the tree also contains copies of further matches that continue with a different token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.engine import NO_OUTPUTS, RequestedOutputs
from speculant.core.errors import UsageError
from speculant.core.tree import Array, DraftTree, Int32
from speculant.drafters.copying.context import (
    LONGEST_RATED,
    Context,
    agreement,
    copy_token,
    heaviest_first,
    new_rates,
    rate,
    rate_copy,
    warm_up,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupSettings:
    """Settings of `lookup`; the defaults are those of prompt lookup decoding.

    Attributes:
        longest: maximum length of a match, in tokens; longer ones count as equally long.
        shortest: minimum length of a match, in tokens.
        copied: tokens copied from each match.
        branches: number of matches to copy from, each with a different next token.

    Raises:
        UsageError: the last three must each be 1 or more.
    """

    longest: int = 3
    shortest: int = 1
    copied: int = 10
    branches: int = 1

    def __post_init__(self) -> None:
        if min(self.shortest, self.copied, self.branches) < 1:
            raise UsageError("shortest, copied and branches must each be 1 or more; give larger ones.")


class LookupDrafter(Drafter):
    """Opens sessions; no state is kept between them."""

    def __init__(self, *, vocabulary: int, settings: LookupSettings | None = None) -> None:
        """Prepare for requests.

        Args:
            vocabulary: V, the number of token ids.
            settings: None for the defaults.
        """
        self.vocabulary = vocabulary
        self.settings = settings or LookupSettings()
        warm_up(self.open(SessionRequest(prompt=np.zeros(2, np.int32))))

    @property
    def needs(self) -> RequestedOutputs:
        """Target outputs this drafter needs: none."""
        return NO_OUTPUTS

    def open(self, start: SessionRequest) -> Session:
        """Start a request; the prompt is indexed at once."""
        return LookupSession(start.prompt, self.vocabulary, self.settings)


class LookupSession(Session):
    """Session of one request: its text, and where the last draft was copied from."""

    def __init__(self, prompt: Int32, vocabulary: int, settings: LookupSettings) -> None:
        self._context = Context(prompt, vocabulary)
        self._settings = settings
        self._rates = new_rates()
        self._match = -1
        self._agreed = 0

    def propose(self, budget: Budget) -> DraftTree:
        """Copy what followed the longest, most recent match."""
        tree, self._match, self._agreed = self._draft_copy(budget)
        return tree

    def propose_after(self, tokens: Sequence[int], budget: Budget) -> DraftTree:
        """Copy what followed the longest, most recent match of the text followed by `tokens`."""
        with self._context.ahead(tokens):
            return self._draft_copy(budget)[0]

    def _draft_copy(self, budget: Budget) -> tuple[DraftTree, int, int]:
        """Return the draft, the end of its best match (-1: none), and how many tokens agree there."""
        context, settings = self._context, self._settings
        if min(budget.nodes, budget.depth) < 1 or context.length < 2:
            return DraftTree.empty(), -1, 0
        tokens, parents, weights, match, agreed = look_up(
            context.text, context.previous, context.length, settings.shortest, settings.longest,
            min(settings.copied, budget.depth), settings.branches if budget.trees else 1, budget.nodes, self._rates,
        )  # fmt: skip
        return DraftTree.trusted(tokens, parents, weights), match, agreed

    def observe(self, verified: Verified) -> None:
        """Count how far the copy was correct, and append the committed tokens."""
        if self._match >= 0:
            context, tokens = self._context, verified.tokens
            rate_copy(self._rates, context.text, context.length, self._match, self._agreed, tokens)
            self._match = -1
        self._context.append(verified.tokens)

    def close(self) -> None:
        """Do nothing."""


@njit(cache=True, nogil=True, inline="always")
def _place(matches: Array, sizes: Array, count: int, text: Array, match: int, size: int) -> int:
    """Insert a match after those of at least its length, unless one has the same next token; return the new count.

    The arrays have one entry more than there are branches; a match in that entry is dropped.
    """
    at = 0
    while at < count and sizes[at] >= size:
        if text[matches[at] + 1] == text[match + 1]:
            return count
        at += 1
    end = at
    while end < count and text[matches[end] + 1] != text[match + 1]:
        end += 1
    for i in range(end, at, -1):
        matches[i], sizes[i] = matches[i - 1], sizes[i - 1]
    matches[at], sizes[at] = match, size
    return min(max(count, end + 1), len(matches) - 1)


@njit(cache=True, nogil=True)
def look_up(
    text: Array, previous: Array, length: int, shortest: int, longest: int, span: int, branches: int, limit: int,
    rates: Array,
) -> tuple[Array, Array, Array, int, int]:  # fmt: skip
    """Return the draft's tokens, parents and weights, the end of its best match (-1: none), and the agreement there.

    Args:
        text, previous: arrays of a context.
        length: T, length of the text.
        shortest, longest: minimum and maximum length of a match, in tokens.
        span: tokens copied from each match.
        branches: maximum number of matches to copy from.
        limit: maximum number of nodes.
        rates: Float64[2, 17], see `new_rates`.
    """
    last = length - 1
    matches, sizes = np.full(branches + 1, -1, np.int64), np.zeros(branches + 1, np.int64)
    count = 0
    candidate = np.int64(previous[last])
    while candidate >= 0 and (count < branches or sizes[count - 1] < longest):
        size = agreement(text, candidate, last, longest)
        if size >= shortest and (count < branches or size > sizes[count - 1]):
            count = _place(matches, sizes, count, text, candidate, size)
        candidate = np.int64(previous[candidate])

    nodes = count * span
    tokens, parents, weights = np.empty(nodes, np.int32), np.empty(nodes, np.int32), np.empty(nodes, np.float64)
    left = 1.0
    for i in range(count):
        agreed, weight = agreement(text, matches[i], last, LONGEST_RATED), left
        for depth in range(span):
            node = i * span + depth
            weight *= rate(rates, agreed + depth)
            tokens[node] = copy_token(text, length, matches[i], depth)
            parents[node] = node - 1 if depth else -1
            weights[node] = weight
        left -= weights[i * span]
    tokens, parents, heavy = heaviest_first(tokens, parents, weights, limit)
    return tokens, parents, heavy, matches[0], agreement(text, matches[0], last, LONGEST_RATED)
