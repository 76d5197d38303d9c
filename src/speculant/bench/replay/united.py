"""A memory's drafts united with those of a head whose acceptance was recorded when a trace was made.

A record tells how many of the head's drafted tokens were right, not which wrong ones it drafted, nor how probable the
head found them. So its chain is the accepted part of the output, then a token that is never right; and a node's
probability is how often the head was right at that depth, learned round by round as the drafts of any drafter are. A
tree takes the most probable nodes of both; nodes that both have count once. A chain is that of the memory or that of
the head, whichever is expected to be accepted further where the memory is as sure as it is now: once the text has gone
on, both chains are compared with it. What a head and a memory would learn from agreeing is left out: a record would
give away which of the head's tokens are right.

With a head at hand the same is `mix-head`; see `drafters.models.union`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np

from speculant.bench.replay.recorded import DRAFTS
from speculant.bench.replay.traces import Recording
from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.tree import ROOT, DraftTree, Float32, Float64, Int32
from speculant.drafters.models.level_session import heaviest

WRONG = 2**31 - 1  # no token: ids of recordings are smaller
_PRIOR = 0.7, 2.0  # of a chain's next token, and the observations that it counts as
_BANDS = 12  # of how far a chain of the memory is expected to be accepted


class ChainRates:
    """How often the tokens of a head's chain were right, by depth, where those before them were."""

    def __init__(self) -> None:
        self._right, self._seen = np.zeros(DRAFTS), np.zeros(DRAFTS)

    def weights(self, length: int) -> Float64:
        """Return the probability that each of a chain's tokens is accepted."""
        rate, count = _PRIOR
        return np.asarray(np.cumprod((self._right[:length] + rate * count) / (self._seen[:length] + count)), np.float64)

    def learn(self, accepted: int, length: int) -> None:
        """Learn that so many of `length` tokens were accepted."""
        self._right[:accepted] += 1
        self._seen[: min(accepted + 1, length)] += 1


class ChainChoice:
    """Which of two chains is accepted further on average, by how sure the memory is of its own."""

    def __init__(self) -> None:
        self._gained = np.zeros((_BANDS, 2))  # accepted tokens of the memory's chains, and of the head's

    def band(self, weights: Float32) -> int:
        """Return the band of a chain of the memory with these probabilities."""
        return min(_BANDS - 1, int(2 * float(weights.sum())))

    def prefers_memory(self, band: int, memory: float, head: float) -> bool:
        """Return whether the memory's chain is chosen, given how many tokens of either their own weights expect."""
        gained = self._gained[band] + (memory, head)  # one observation more
        return bool(gained[0] > gained[1])

    def learn(self, band: int, memory: int, head: int) -> None:
        """Learn how many tokens of either chain were those of the text."""
        self._gained[band] += memory, head


@dataclass(frozen=True, slots=True)
class Chains:
    """Two chains that were drafted at a position of the output."""

    at: int
    band: int
    memory: list[int]
    head: list[int]


class UnitedDrafter(Drafter):
    """A memory and a recorded head."""

    def __init__(self, memory: Drafter, requests: Iterator[Recording], name: str) -> None:
        """Unite them.

        Args:
            memory: a drafter whose node weights are probabilities.
            requests: as they are going to be opened, one after the other; those of `recorded_by`.
            name: of the head in the recordings.
        """
        self._memory, self._requests, self._name = memory, requests, name
        self._rates, self._choice = ChainRates(), ChainChoice()

    @property
    def needs(self) -> RequestedOutputs:
        return self._memory.needs

    @property
    def memory_bytes(self) -> int | None:
        """Bytes that the memory takes, if it tells."""
        return getattr(self._memory, "memory_bytes", None)

    def open(self, start: SessionRequest) -> Session:
        recording = next(self._requests)
        session = self._memory.open(start)
        return ReplayUnitedSession(session, recording.output, recording.recorded[self._name], self._rates, self._choice)


def select_recorded(name: str, recordings: Sequence[Recording]) -> list[Recording]:
    """Return the recordings with a head's acceptance, cut to where that ends."""
    known = [each for each in recordings if len(each.recorded.get(name, ()))]
    return [replace(each, output=each.output[: len(each.recorded[name])]) for each in known]


class ReplayUnitedSession(Session):
    """One request."""

    def __init__(self, memory: Session, output: Int32, yields: Int32, rates: ChainRates, choice: ChainChoice) -> None:
        self._memory, self._output, self._yields = memory, output, yields
        self._rates, self._choice = rates, choice
        self._at, self._own, self._head = 0, DraftTree.empty(), list[int]()
        self._waiting = list[Chains]()  # whose ends the text has not reached

    def propose(self, budget: Budget) -> DraftTree:
        self._own = self._memory.propose(budget)
        right = self._output[self._at : self._at + int(self._yields[self._at]) - 1].tolist()
        length = min(budget.depth, budget.nodes, DRAFTS)
        self._head = [*right, *[WRONG] * (length - len(right))][:length]
        weights = self._rates.weights(length)
        return self._tree(budget, weights) if budget.trees else self._chain(budget, weights)

    def _tree(self, budget: Budget, weights: Float64) -> DraftTree:
        """Return the most probable nodes of both."""
        own = self._own
        tokens, parents, joint = own.tokens.tolist(), own.parents.tolist(), own.weights.tolist()
        below = {(parent, token): node for node, (parent, token) in enumerate(zip(parents, tokens, strict=True))}
        parent = ROOT
        for token, weight in zip(self._head, weights.tolist(), strict=True):
            node = below.get((parent, token))
            if node is None:
                node = len(tokens)
                tokens, parents, joint = [*tokens, token], [*parents, parent], [*joint, weight]
            else:
                joint[node] = max(joint[node], weight)
            parent = node
        return heaviest(tokens, parents, joint, budget.nodes)

    def _chain(self, budget: Budget, weights: Float64) -> DraftTree:
        """Return the chain that is expected to be accepted further."""
        own = self._own
        band = self._choice.band(own.weights)
        self._waiting.append(Chains(self._at, band, own.tokens.tolist(), self._head))
        if self._choice.prefers_memory(band, float(own.weights.sum()), float(weights.sum())):
            return own
        return heaviest(self._head, list(range(ROOT, len(weights) - 1)), weights.tolist(), len(weights))

    def observe(self, verified: Verified) -> None:
        tokens = verified.tokens.tolist()
        if self._head:
            self._rates.learn(_common(self._head, tokens), min(len(self._head), len(tokens)))
        self._at += len(tokens)
        self._compare_chains()
        path, node = list[int](), ROOT
        for token in tokens[:-1]:
            found = [child for child in self._own.children(node) if self._own.tokens[child] == token]
            if not found:
                break
            [node] = found
            path.append(node)
        self._memory.observe(Verified(tree=self._own, path=np.array(path, np.int32), tokens=verified.tokens))
        self._own, self._head = DraftTree.empty(), []

    def _compare_chains(self) -> None:
        """Learn from the chains whose places the text has passed."""
        while self._waiting and self._waiting[0].at + DRAFTS <= self._at:
            chains = self._waiting.pop(0)
            text = self._output[chains.at : chains.at + DRAFTS].tolist()
            self._choice.learn(chains.band, _common(chains.memory, text), _common(chains.head, text))

    def close(self) -> None:
        self._memory.close()


def _common(drafted: Sequence[int], text: Sequence[int]) -> int:
    """Return how many of the first tokens are the same."""
    pairs = zip(drafted, text, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
