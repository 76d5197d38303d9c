"""`mix` proposes, a draft model judges and extends: one tree, weighted by how reliable each has been so far.

`mix` knows what this text and earlier ones repeat, a model knows the language. One pass of the draft model reads the
whole tree that `mix` proposes; then the most probable nodes are extended by the model's own tokens, level by level, and
the most probable nodes of all become the draft. A candidate's probability, given that its parent was accepted, is a
logistic mixture of both opinions,

    sigmoid(w0 + w1 logit(q) + w2 logit(m) + w3 [no m]),

with q of the draft model, m of `mix` (calibrated), and weights learned online from every candidate whose parent was
accepted, as `mix` learns its own; candidates of a node never add up to more than 1. SAM-Decoding (Hu et al. 2025, arXiv
2411.10666) and Cascade Speculative Drafting switch between retrieval and a model; here both share one tree.
All tokens are chosen, so with a seed the text is plain decoding's.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from torch import Tensor

from speculant.core.drafter import MEMORY_LIMIT, Budget, Drafter, Persistent, Session, Start, Verified
from speculant.core.engine import Needs
from speculant.core.errors import UsageError
from speculant.core.tree import ROOT, DraftTree, Float64
from speculant.drafters.mix.drafter import MixDrafter
from speculant.drafters.models.draft_text import DraftText, OpenCache
from speculant.drafters.models.level_session import heaviest
from speculant.drafters.models.shapes import MOST_NODES, MOST_PASSES

_RATE = 0.02  # of learning, per candidate
_LEAST = 1e-4  # probabilities count as at least this, and at most 1 less this
_FIRST_WEIGHTS = (0.0, 0.6, 0.5, -0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixModelSettings:
    """Settings of `mix-model`.

    Attributes:
        proposed: nodes of the tree that `mix` proposes.
        depth: passes of the draft model that extend it.
        top_k: nodes that each of them extends, and candidates of each.
        least: joint probability below which no node is extended.
    """

    proposed: int = 16
    depth: int = 4
    top_k: int = 4
    least: float = 0.1


class Mixture:
    """The weights of the two opinions, over all requests."""

    def __init__(self) -> None:
        self._weights = np.array(_FIRST_WEIGHTS)
        self._lock = threading.Lock()

    def probabilities(self, features: Float64) -> Float64:
        """Return the probabilities Float64[C] of one node's candidates, of features Float64[C, 4]."""
        p = 1 / (1 + np.exp(-(features @ self._weights)))
        return np.asarray(p / max(1.0, float(p.sum())), np.float64)

    def learn(self, features: Float64, right: Float64) -> None:
        """Take a gradient step of the logarithmic loss for each candidate; `right` is 1 for the target's token."""
        with self._lock:
            p = 1 / (1 + np.exp(-(features @ self._weights)))
            self._weights = self._weights + _RATE * (right - p) @ features


def features_of(q: float, m: float | None) -> tuple[float, float, float, float]:
    """Return the features of a candidate with probability q by the model and m by `mix`, None if it has none."""
    return (1.0, _logit(q), 0.0 if m is None else _logit(m), float(m is None))


def _logit(p: float) -> float:
    p = min(max(p, _LEAST), 1 - _LEAST)
    return math.log(p / (1 - p))


class MixModelDrafter(Drafter, Persistent):
    """`mix-model`. What is saved is the memory of `mix`."""

    def __init__(
        self,
        open_cache: OpenCache,
        *,
        vocabulary: int,
        tokenizer: str = "",
        memory_limit: int = MEMORY_LIMIT,
        settings: MixModelSettings | None = None,
    ) -> None:
        """Take the draft model, and build `mix`.

        Args:
            open_cache: returns a cache of the draft model for a prompt Int32[T], which is not read yet.
            vocabulary: V of the target.
            tokenizer: fingerprint that saved memories are tied to.
            memory_limit: bytes that the memory of `mix` may take.
            settings: None for the defaults.

        Raises:
            UsageError: a setting is out of range.
        """
        s = settings or MixModelSettings()
        if not (1 <= s.proposed <= MOST_NODES and 0 <= s.depth <= MOST_PASSES and 1 <= s.top_k <= MOST_NODES):
            raise UsageError(f"proposed and top_k are 1 to {MOST_NODES}, depth is 0 to {MOST_PASSES}.")
        if not 0 <= s.least < 1:
            raise UsageError(f"least must be from 0 to below 1, not {s.least}.")
        self._open_cache, self._vocabulary, self._settings = open_cache, vocabulary, s
        self.mix = MixDrafter(vocabulary=vocabulary, tokenizer=tokenizer, memory_limit=memory_limit)
        self._mixture = Mixture()

    @property
    def needs(self) -> Needs:
        """What `mix` learns from."""
        return self.mix.needs

    @property
    def memory_bytes(self) -> int:
        """Bytes that the memory of `mix` takes now."""
        return self.mix.memory_bytes

    def open(self, start: Start) -> Session:
        text = DraftText.open(self._open_cache, start, self._vocabulary)
        return MixModelSession(text, self.mix.open(start), self._mixture, self._settings)

    def save(self, path: Path) -> None:
        """Write the memory of `mix`; raises as its `save`."""
        self.mix.save(path)

    def load(self, path: Path) -> None:
        """Replace the memory of `mix`; raises as its `load`."""
        self.mix.load(path)


@dataclass(slots=True)
class Growth:
    """A draft while it grows: nodes with their joint probabilities, and what the mixture saw below each."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    rows: dict[int, int] = field(default_factory=lambda: {ROOT: ROOT})
    seen: dict[int, tuple[list[int], Float64]] = field(default_factory=dict)  # by node: candidates, their features


class MixModelSession(Session):
    """One request: its text on the draft model, the session of `mix`, and the candidates of the last draft."""

    def __init__(self, text: DraftText, mix: Session, mixture: Mixture, settings: MixModelSettings) -> None:
        self._text, self._mix, self._mixture, self._settings = text, mix, mixture, settings
        self._seen: dict[tuple[int, ...], tuple[list[int], Float64]] = {}  # by the tokens from the root

    def propose(self, budget: Budget) -> DraftTree:
        """Return the most probable paths of both."""
        self._seen = {}
        most = min(budget.depth, self._text.depth)
        if min(budget.nodes, most) < 1:  # the draft model may have no positions left
            return self._mix.propose(budget)
        trees = budget.trees and self._text.trees
        proposed = self._mix.propose(Budget(nodes=self._settings.proposed, depth=most, trees=trees))
        growth = self._judged(proposed)
        for _ in range(self._settings.depth):
            if not self._extended(growth, budget.nodes, most, trees):
                break
        draft = heaviest(growth.tokens, growth.parents, growth.weights, budget.nodes)
        self._seen = {self._path(growth, node): seen for node, seen in growth.seen.items()}
        return draft.within(depth=most, trees=budget.trees)

    def _judged(self, proposed: DraftTree) -> Growth:
        """Return the proposed tree and the model's own candidates beside and below its nodes."""
        growth = Growth()
        [q] = self._text.begin()
        laws = {ROOT: q}
        if len(proposed):
            rows, after = self._text.read(proposed.tokens.tolist(), proposed.parents.tolist())
            laws |= enumerate(after)
        place = {ROOT: ROOT}
        for node in range(-1, len(proposed)):
            if node != ROOT and node not in place:
                continue
            above = 1.0 if node == ROOT else float(proposed.weights[node])
            known = {int(proposed.tokens[child]): child for child in proposed.children(node)}
            shares = {token: float(proposed.weights[child]) / max(above, _LEAST) for token, child in known.items()}
            for token, added in self._add(growth, place[node], laws[node], shares).items():
                if token in known:
                    place[known[token]] = added
                    growth.rows[added] = rows[known[token]]
        return growth

    def _add(self, growth: Growth, parent: int, q: Tensor, shares: dict[int, float]) -> dict[int, int]:
        """Add the candidates below a node, and return them by their tokens."""
        best = q.topk(min(self._settings.top_k, len(q)))
        given = dict(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        given |= {token: float(q[token]) for token in shares if token not in given}
        features = np.array([features_of(p, shares.get(token)) for token, p in given.items()])
        growth.seen[parent] = list(given), features
        joint, added = 1.0 if parent == ROOT else growth.weights[parent], dict[int, int]()
        for token, p in zip(given, self._mixture.probabilities(features).tolist(), strict=True):
            added[token] = len(growth.tokens)
            growth.tokens.append(token)
            growth.parents.append(parent)
            growth.weights.append(joint * p)
        return added

    def _extended(self, growth: Growth, most: int, depth: int, trees: bool) -> bool:
        """Extend the most probable nodes that the model has not read; return whether there were any."""
        settings = self._settings
        least = max(settings.least, sorted(growth.weights)[-most] if len(growth.weights) > most else 0)
        open_ = [
            node
            for node, weight in enumerate(growth.weights)
            if node not in growth.seen and weight > least and len(self._path(growth, node)) < depth
        ]
        if not trees:
            open_ = [node for node in open_ if growth.rows[growth.parents[node]] == self._text.rows - 1]
        open_ = sorted(open_, key=lambda node: -growth.weights[node])[: settings.top_k if trees else 1]
        if not open_:
            return False
        above = [growth.rows[growth.parents[node]] for node in open_]
        rows, laws = self._text.read([growth.tokens[node] for node in open_], above)
        for node, row, q in zip(open_, rows, laws, strict=True):
            growth.rows[node] = row
            self._add(growth, node, q, {})
        return True

    def _path(self, growth: Growth, node: int) -> tuple[int, ...]:
        """Return the tokens from the root to a node."""
        path = list[int]()
        while node != ROOT:
            path.append(growth.tokens[node])
            node = growth.parents[node]
        return tuple(path[::-1])

    def forecast(self, nodes: int) -> Float64:
        """Return nothing: the passes of the draft model do not depend on the nodes asked for."""
        return np.empty(0)

    def observe(self, verified: Verified) -> None:
        """Let the model's text, `mix` and the mixture learn what the target chose."""
        tokens = verified.tokens.tolist()
        for depth, token in enumerate(tokens):
            if (seen := self._seen.get(tuple(tokens[:depth]))) is not None:
                candidates, features = seen
                self._mixture.learn(features, np.array([float(each == token) for each in candidates]))
        self._seen = {}
        self._text.observe(verified)
        self._mix.observe(verified)

    def close(self) -> None:
        self._mix.close()
        self._text.release()
