"""Input-guided aggressive decoding: draft on the assumption that the output repeats the prompt.

Sun, Ge, Wei, Wang: "Instantaneous Grammatical Error Correction with Shallow Aggressive Decoding", ACL 2021,
arXiv 2106.04970, section 3.1 (aggressive decoding), without its model. A pointer into the prompt gives the next token;
it starts at the first token and advances with every token that agrees. When the output departs from the prompt, nothing
is drafted until a suffix of the output, even a single token, occurs in the prompt exactly once.

For every occurrence of the last token in the prompt, the length of the output's suffix that matches up to it is kept;
it is derived from the length at the preceding position. A step takes as many operations as the token has occurrences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit

from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.engine import NO_OUTPUTS, RequestedOutputs
from speculant.core.tree import Array, DraftTree, Int32
from speculant.drafters.copying.context import new_rates, rate, warm_up


@dataclass(frozen=True, slots=True, kw_only=True)
class SadSettings:
    """Settings; as published, a unique match of one token realigns, and the whole rest of the prompt is drafted.

    Attributes:
        shortest: minimum length, in tokens, of a unique match of the output's end before the prompt is followed again.
        drafted: maximum tokens drafted; None for no limit other than the budget.
    """

    shortest: int = 1
    drafted: int | None = None


class Alignment(NamedTuple):
    """The alignment of the output with a prompt of T tokens.

    Attributes:
        prompt: Int32[T].
        order: Int64[T], positions in the prompt, sorted by token.
        ordered: Int32[T], the tokens in that order.
        runs: Int32[T], number of tokens at the output's end that agree with the prompt up to each position; valid
            where `steps` equals the current step.
        steps: Int32[T], the step at which each entry of `runs` was written.
        state: Int64[3], output tokens so far, next position (-1: not aligned), number of agreeing tokens before it.
    """

    prompt: Array
    order: Array
    ordered: Array
    runs: Array
    steps: Array
    state: Array


class SadDrafter(Drafter):
    """Opens sessions; no state is kept between them."""

    def __init__(self, *, settings: SadSettings | None = None) -> None:
        self.settings = settings or SadSettings()
        warm_up(self.open(SessionRequest(prompt=np.zeros(2, np.int32))))

    @property
    def needs(self) -> RequestedOutputs:
        """Target outputs this drafter needs: none."""
        return NO_OUTPUTS

    def open(self, start: SessionRequest) -> Session:
        """Start a request."""
        return SadSession(start.prompt, self.settings)


class SadSession(Session):
    """Session of one request: its prompt, and the position that the output has reached in it."""

    def __init__(self, prompt: Int32, settings: SadSettings) -> None:
        self._alignment = align(prompt)
        self._settings = settings
        self._rates = new_rates()

    def propose(self, budget: Budget) -> DraftTree:
        """Repeat the prompt from the position that the output has reached."""
        drafted = self._settings.drafted
        nodes = min(budget.nodes, budget.depth, budget.nodes if drafted is None else drafted)
        if nodes < 1:
            return DraftTree.empty()
        return DraftTree.trusted(*repeat(self._alignment, nodes, self._rates))

    def observe(self, verified: Verified) -> None:
        """Follow the committed tokens through the prompt."""
        follow(self._alignment, verified.tokens, self._settings.shortest, self._rates)

    def close(self) -> None:
        """Do nothing."""


def align(prompt: Int32) -> Alignment:
    """Return the alignment of an empty output, whose first token is assumed to be the prompt's."""
    prompt = np.ascontiguousarray(prompt, np.int32)
    order = np.argsort(prompt, kind="stable")
    runs, steps = np.zeros(len(prompt), np.int32), np.zeros(len(prompt), np.int32)
    return Alignment(prompt, order, prompt[order], runs, steps, np.zeros(3, np.int64))


@njit(cache=True, nogil=True)
def follow(alignment: Alignment, tokens: Array, shortest: int, rates: Array) -> None:
    """Advance by output tokens, Int32[A], and count where the prompt predicted them."""
    prompt, order, ordered, runs, steps, state = alignment
    for token in tokens:
        state[0] += 1
        step, place, agreed = state
        longest, second, at = np.int64(0), np.int64(0), np.int64(-1)
        # Iterate from the last position to the first: each reads the run that the previous step wrote before it.
        for i in range(np.searchsorted(ordered, token, side="right") - 1, -1, -1):
            if ordered[i] != token:
                break
            p = order[i]
            run = np.int64(1)
            if p > 0 and step > 1 and steps[p - 1] == step - 1:
                run += runs[p - 1]
            runs[p], steps[p] = run, step
            if run > longest:
                longest, second, at = run, longest, p
            elif run > second:
                second = run
        if 0 <= place < len(prompt):
            kind = min(agreed, rates.shape[1] - 1)
            rates[1, kind] += 1
            if prompt[place] == token:
                rates[0, kind] += 1
                state[1], state[2] = place + 1, agreed + 1
                continue
        state[1] = -1
        if longest > second and longest >= shortest:
            state[1], state[2] = at + 1, longest


@njit(cache=True, nogil=True)
def repeat(alignment: Alignment, nodes: int, rates: Array) -> tuple[Array, Array, Array]:
    """Return tokens, parents and weights of the chain that continues the prompt."""
    _, place, agreed = alignment.state
    left = len(alignment.prompt) - place if place >= 0 else 0
    count = min(nodes, left)
    tokens, weights = np.empty(count, np.int32), np.empty(count, np.float32)
    weight = 1.0
    for depth in range(count):
        weight *= rate(rates, agreed + depth)
        tokens[depth], weights[depth] = alignment.prompt[place + depth], weight
    return tokens, np.arange(-1, count - 1).astype(np.int32), weights
