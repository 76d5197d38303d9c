"""LogitSpec: draft the runners-up to the root as guesses at the token after it, and continue each from the text.

Liu, Lv, Li, Gao, Sun: "LogitSpec: Accelerating Retrieval-based Speculative Decoding via Next Next Token Speculation",
2025, arXiv 2507.01449. The distribution from which the root was chosen also tells about the token after it: its other
top tokens, in order, become children of the root. The end of the text, alone and with each guess appended, is looked up
among earlier matches of three down to one token, and what followed there is copied: 20 tokens below the root, 4 in
total for each of the first eight guesses, 3 up to the 32nd, 1 for the rest, as published.

In the paper the tree of 64 nodes is filled in order. Here it takes the nodes with the largest estimated probability:
how often a guess of that rank has been correct, times how often copies with as many agreeing tokens were. If a guess is
also the first token of the copy below the root, it is drafted only once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UsageError
from speculant.core.tree import Array, DraftTree, Int32
from speculant.drafters.copying.context import (
    LONGEST_RATED,
    Context,
    agreement,
    copy_token,
    heaviest_first,
    longest_match,
    new_rates,
    rate,
    rate_copy,
    warm_up,
)

_REACH = 256  # maximum positions examined per guess, most recent first
_PRIOR_TRIALS = 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitSpecSettings:
    """Settings of LogitSpec; the defaults are the published ones.

    Attributes:
        guesses: number of the target's top tokens requested, including the root.
        longest: maximum length of a match, in tokens; longer ones count as equally long.
        copied: tokens copied below the root.
        lengths: (rank, tokens): guesses up to that rank are continued to that many tokens; guesses beyond are not.
        nodes: maximum nodes per tree.

    Raises:
        UsageError: guesses, copied and the tokens of lengths must each be 1 or more.
    """

    guesses: int = 64
    longest: int = 3
    copied: int = 20
    lengths: tuple[tuple[int, int], ...] = ((8, 4), (32, 3))
    nodes: int = 64

    def __post_init__(self) -> None:
        if min(self.guesses, self.copied, *(tokens for _, tokens in self.lengths)) < 1:
            raise UsageError("guesses, copied and the tokens in lengths must each be 1 or more; give larger ones.")

    def spans(self) -> Int32:
        """Return Int32[guesses], the total tokens to which a guess of each rank is continued."""
        spans = np.ones(self.guesses, np.int32)
        for rank, tokens in reversed(self.lengths):
            spans[: rank + 1] = tokens  # rank 0 is the target's own choice
        return spans


class LogitSpecDrafter(Drafter):
    """Opens sessions; no state is kept between them."""

    def __init__(self, *, vocabulary: int, settings: LogitSpecSettings | None = None) -> None:
        """Prepare for requests.

        Args:
            vocabulary: V, the number of token ids.
            settings: None for the defaults.
        """
        self.vocabulary = vocabulary
        self.settings = settings or LogitSpecSettings()
        warm_up(self.open(SessionRequest(prompt=np.zeros(2, np.int32))))

    @property
    def needs(self) -> RequestedOutputs:
        """Target outputs this drafter needs: top tokens at every row, since any may be the last accepted one."""
        return RequestedOutputs(top_k=self.settings.guesses)

    def open(self, start: SessionRequest) -> Session:
        """Start a request; the prompt is indexed at once."""
        return LogitSpecSession(start.prompt, self.vocabulary, self.settings)


class LogitSpecSession(Session):
    """Session of one request: its text, and the target's top tokens at the root's position."""

    def __init__(self, prompt: Int32, vocabulary: int, settings: LogitSpecSettings) -> None:
        self._context = Context(prompt, vocabulary)
        self._settings = settings
        self._spans = settings.spans()
        self._rates = new_rates()
        self._hits = new_hits(settings.guesses)
        self._guesses = np.empty(0, np.int32)
        self._match = -1
        self._agreed = 0

    def propose(self, budget: Budget) -> DraftTree:
        """Return what followed earlier matches of the text's end, and the guesses with their continuations."""
        self._match = -1
        nodes = min(budget.nodes, self._settings.nodes)
        if min(nodes, budget.depth) < 1 or not self._context.length:
            return DraftTree.empty()
        context = self._context
        tokens, parents, weights, self._match, self._agreed = guess(
            context.text, context.previous, context.latest, context.length, self._guesses, self._hits,
            np.minimum(self._spans, min(nodes, budget.depth)), self._settings.longest,
            min(self._settings.copied, budget.depth), nodes, self._rates,
        )  # fmt: skip
        return DraftTree.trusted(tokens, parents, weights).within(depth=budget.depth, trees=budget.trees)

    def observe(self, verified: Verified) -> None:
        """Count which guess was correct and how far the copy was; keep the guesses for the next round."""
        context, tokens = self._context, verified.tokens
        if len(self._guesses):
            rate_guesses(self._hits, self._guesses, tokens[0])
        if self._match >= 0:
            rate_copy(self._rates, context.text, context.length, self._match, self._agreed, tokens)
            self._match = -1
        context.append(tokens)
        if verified.top_ids is None:
            self._guesses = np.empty(0, np.int32)
        else:
            row = int(verified.path[-1]) + 1 if len(verified.path) else 0
            self._guesses = verified.top_ids[row].copy()

    def close(self) -> None:
        """Do nothing."""


def new_hits(guesses: int) -> Array:
    """Return Float64[guesses + 1]: how often each rank was correct; the last entry is the number of trials.

    The prior is a rate of 0.05 / (r + 1) for rank r, over 16 trials.
    """
    return np.append(_PRIOR_TRIALS * 0.05 / np.arange(1, guesses + 1), _PRIOR_TRIALS)


@njit(cache=True, nogil=True)
def rate_guesses(hits: Array, guesses: Array, token: int) -> None:
    """Count a trial, and the rank of the guess that the committed token matches."""
    hits[-1] += 1
    for rank in range(min(len(guesses), len(hits) - 1)):
        if guesses[rank] == token:
            hits[rank] += 1


@njit(cache=True, nogil=True)
def guess(
    text: Array, previous: Array, latest: Array, length: int, guesses: Array, hits: Array, spans: Array, longest: int,
    span: int, limit: int, rates: Array,
) -> tuple[Array, Array, Array, int, int]:  # fmt: skip
    """Return the tree's tokens, parents and weights, the end of the match at the root (-1: none) and its agreement.

    Each guess is temporarily written after the text while an earlier match that ends with it is looked up.

    Args:
        text, previous, latest: arrays of a context.
        length: T, length of the text.
        guesses: Int32[k], target's top tokens at the root's position.
        hits: Float64[guesses + 1], see `new_hits`.
        spans: Int32[guesses], total tokens to which a guess of each rank is continued.
        longest: maximum length of a match, in tokens.
        span: tokens copied below the root.
        limit: maximum number of nodes.
        rates: Float64[2, 17], see `new_rates`.
    """
    maximum = span + spans[: len(guesses)].sum()
    tokens, parents, weights = np.empty(maximum, np.int32), np.empty(maximum, np.int32), np.empty(maximum, np.float64)
    last, count, agreed, left = length - 1, 0, np.int64(0), 1.0
    match, _ = longest_match(text, previous, np.int64(previous[last]), last, 1, longest, length)
    if match >= 0:
        agreed = agreement(text, match, last, LONGEST_RATED)
        count = _copy(tokens, parents, weights, 0, text, length, match, agreed, span, -1, 1.0, rates)
        left -= weights[0]
    for rank in range(min(len(guesses), len(spans))):
        token = guesses[rank]
        if token == text[last] or (match >= 0 and token == tokens[0]):
            continue
        root, weight = count, left * hits[rank] / hits[-1]
        tokens[root], parents[root], weights[root] = token, -1, weight
        count += 1
        text[length] = token
        nearest = np.int64(latest[token % len(latest)])
        place, _ = longest_match(text, previous, nearest, length, 1, longest, _REACH)
        if place >= 0:
            known = agreement(text, place, length, LONGEST_RATED)
            more = spans[rank] - 1
            count = _copy(tokens, parents, weights, count, text, length + 1, place, known, more, root, weight, rates)
    tokens, parents, heavy = heaviest_first(tokens[:count], parents[:count], weights[:count], limit)
    return tokens, parents, heavy, match, agreed


@njit(cache=True, nogil=True, inline="always")
def _copy(
    tokens: Array, parents: Array, weights: Array, count: int, text: Array, length: int, match: int, agreed: int,
    span: int, parent: int, weight: float, rates: Array,
) -> int:  # fmt: skip
    """Append a copied chain of `span` nodes below a node, and return the new number of nodes."""
    for depth in range(span):
        weight *= rate(rates, agreed + depth)
        tokens[count], parents[count], weights[count] = copy_token(text, length, match, depth), parent, weight
        parent = count
        count += 1
    return count
