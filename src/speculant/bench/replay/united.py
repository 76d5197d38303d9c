"""Unites a memory's drafts with those of a head whose acceptance was recorded with a trace.

A record has the number of the head's correct tokens, but neither its wrong tokens nor its probabilities. So its chain
is the accepted part of the output, followed by a token that is never correct; and a node's probability is the observed
share of correct tokens at its depth, learned round by round as for any drafter. A tree takes the most probable nodes of
both; shared nodes count once. A chain is either the memory's or the head's, whichever is expected to be accepted
further at the memory's current confidence: once the text has continued, both chains are compared with it. Learning from
agreement between head and memory is left out: a record would reveal which of the head's tokens are correct.

With an actual head, `mix-head` does the same; see `drafters.models.union`.
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
from speculant.drafters.top_nodes import top_nodes

WRONG = 2**31 - 1  # not a token: ids in recordings are smaller
_PRIOR = 0.7, 2.0  # prior probability of a chain's next token, and its weight in observations
_BANDS = 12  # bands of the expected accepted length of a memory's chain


class ChainRates:
    """The share of correct tokens in a head's chain by depth, given that the previous ones were correct."""

    def __init__(self) -> None:
        self._right, self._seen = np.zeros(DRAFTS), np.zeros(DRAFTS)

    def weights(self, length: int) -> Float64:
        """Return the probability that each of a chain's tokens is accepted."""
        rate, count = _PRIOR
        return np.asarray(np.cumprod((self._right[:length] + rate * count) / (self._seen[:length] + count)), np.float64)

    def learn(self, accepted: int, length: int) -> None:
        """Learn that `accepted` of `length` tokens were accepted."""
        self._right[:accepted] += 1
        self._seen[: min(accepted + 1, length)] += 1


class ChainChoice:
    """Which of two chains is accepted further on average, by the memory's confidence in its own."""

    def __init__(self) -> None:
        self._gained = np.zeros((_BANDS, 2))  # accepted tokens of the memory's and of the head's chains

    def band(self, weights: Float32) -> int:
        """Return the band of a memory's chain with these probabilities."""
        return min(_BANDS - 1, int(2 * float(weights.sum())))

    def prefers_memory(self, band: int, memory: float, head: float) -> bool:
        """Return whether to choose the memory's chain, given each chain's expected accepted tokens by its weights."""
        gained = self._gained[band] + (memory, head)  # counts as one more observation
        return bool(gained[0] > gained[1])

    def learn(self, band: int, memory: int, head: int) -> None:
        """Learn how many tokens of each chain matched the text."""
        self._gained[band] += memory, head


@dataclass(frozen=True, slots=True)
class Chains:
    """Two chains drafted at one position of the output."""

    at: int
    band: int
    memory: list[int]
    head: list[int]


class UnitedDrafter(Drafter):
    """A memory and a recorded head."""

    def __init__(self, memory: Drafter, requests: Iterator[Recording], name: str) -> None:
        """Unite a memory and a recorded head.

        Args:
            memory: a drafter whose node weights are probabilities.
            requests: requests in the order in which they will be opened; from `select_recorded`.
            name: name of the head in the recordings.
        """
        self._memory, self._requests, self._name = memory, requests, name
        self._rates, self._choice = ChainRates(), ChainChoice()

    @property
    def needs(self) -> RequestedOutputs:
        return self._memory.needs

    @property
    def memory_bytes(self) -> int | None:
        """The bytes of the memory, if it reports them."""
        return getattr(self._memory, "memory_bytes", None)

    def open(self, start: SessionRequest) -> Session:
        recording = next(self._requests)
        session = self._memory.open(start)
        return ReplayUnitedSession(session, recording.output, recording.recorded[self._name], self._rates, self._choice)


def select_recorded(name: str, recordings: Sequence[Recording]) -> list[Recording]:
    """Return the recordings with a head's acceptance, cut to its length."""
    known = [each for each in recordings if len(each.recorded.get(name, ()))]
    return [replace(each, output=each.output[: len(each.recorded[name])]) for each in known]


class ReplayUnitedSession(Session):
    """One request."""

    def __init__(self, memory: Session, output: Int32, yields: Int32, rates: ChainRates, choice: ChainChoice) -> None:
        self._memory, self._output, self._yields = memory, output, yields
        self._rates, self._choice = rates, choice
        self._at, self._own, self._head = 0, DraftTree.empty(), list[int]()
        self._waiting = list[Chains]()  # chains that the text has not passed yet

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
        return top_nodes(tokens, parents, joint, budget.nodes)

    def _chain(self, budget: Budget, weights: Float64) -> DraftTree:
        """Return the chain that is expected to be accepted further."""
        own = self._own
        band = self._choice.band(own.weights)
        self._waiting.append(Chains(self._at, band, own.tokens.tolist(), self._head))
        if self._choice.prefers_memory(band, float(own.weights.sum()), float(weights.sum())):
            return own
        return top_nodes(self._head, list(range(ROOT, len(weights) - 1)), weights.tolist(), len(weights))

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
        """Learn from the chains that the text has passed."""
        while self._waiting and self._waiting[0].at + DRAFTS <= self._at:
            chains = self._waiting.pop(0)
            text = self._output[chains.at : chains.at + DRAFTS].tolist()
            self._choice.learn(chains.band, _common(chains.memory, text), _common(chains.head, text))

    def close(self) -> None:
        self._memory.close()


def _common(drafted: Sequence[int], text: Sequence[int]) -> int:
    """Return the number of equal leading tokens."""
    pairs = zip(drafted, text, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
