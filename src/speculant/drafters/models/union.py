"""A memory proposes, a model scores and extends: one tree, weighted by how reliable each has been so far.

A memory such as `mix` knows what this text and earlier ones repeat; a model knows the language. The model reads the
whole tree that the memory proposes; then the most probable nodes are extended by the model's own tokens, level by
level, and the most probable nodes of all become the draft. A candidate's probability, given that its parent was
accepted, is a logistic mixture of both estimates,

    sigmoid(w0 + w1 logit(q) + w2 logit(m) + w3 [no m]),

with q from the model, m from the memory, and weights learned online from every candidate whose parent was accepted; the
probabilities of a node's candidates never sum to more than 1. SAM-Decoding (Hu et al. 2025, arXiv 2411.10666) and
Cascade Speculative Drafting switch between retrieval and a model; here both share one tree. All tokens are
deterministic, so with a seed the text is the same as with plain decoding.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from speculant.core.drafter import Budget, Session, Verified
from speculant.core.engine import MAX_NODES
from speculant.core.errors import UsageError
from speculant.core.tree import ROOT, DraftTree, Float64
from speculant.drafters.models.level_session import RowText
from speculant.drafters.models.mixture import MINIMUM, Mixture, logit
from speculant.drafters.models.shapes import MAX_PASSES
from speculant.drafters.top_nodes import top_nodes
from speculant.drafters.top_tokens import best_tokens

FIRST_WEIGHTS = (0.0, 0.6, 0.5, -0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnionSettings:
    """Settings of methods that combine a memory with a model or a head.

    Attributes:
        proposed: nodes of the tree that the memory proposes.
        depth: passes of the draft model or head that extend it.
        top_k: nodes extended per pass, and candidates per extended node.
        min_probability: minimum joint probability of a node that is extended.

    Raises:
        UsageError: a setting is out of range.
    """

    proposed: int = 16
    depth: int = 4
    top_k: int = 4
    min_probability: float = 0.1

    def __post_init__(self) -> None:
        if not (1 <= self.proposed <= MAX_NODES and 0 <= self.depth <= MAX_PASSES and 1 <= self.top_k <= MAX_NODES):
            raise UsageError(f"proposed and top_k must be from 1 to {MAX_NODES}, depth from 0 to {MAX_PASSES}.")
        if not 0 <= self.min_probability < 1:
            raise UsageError(f"min_probability must be from 0 to below 1, not {self.min_probability}.")


def features_of(q: float, m: float | None) -> tuple[float, float, float, float]:
    """Return the features of a candidate with probability q from the model and m from the memory, None if missing."""
    return (1.0, logit(q), 0.0 if m is None else logit(m), float(m is None))


@dataclass(slots=True)
class UnionDraft:
    """A draft in progress.

    Attributes:
        tokens, parents, weights, depths: one entry per node; weights are joint probabilities, and children of the root
            have depth 1.
        rows: row of each node that the model has read.
        features: for each node, the candidates below it: their tokens, and features Float64[C, 4].
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    rows: dict[int, int] = field(default_factory=lambda: {ROOT: ROOT})
    features: dict[int, tuple[list[int], Float64]] = field(default_factory=dict)

    def add(self, parent: int, tokens: list[int], probabilities: list[float]) -> dict[int, int]:
        """Add children to a node, given their conditional probabilities; return the new nodes by token."""
        first = len(self.tokens)
        joint, depth = (1.0, 0) if parent == ROOT else (self.weights[parent], self.depths[parent])
        self.tokens += tokens
        self.parents += [parent] * len(tokens)
        self.weights += [joint * p for p in probabilities]
        self.depths += [depth + 1] * len(tokens)
        return {token: first + i for i, token in enumerate(tokens)}

    def path(self, node: int) -> tuple[int, ...]:
        """Return the tokens from the root to a node."""
        path = list[int]()
        while node != ROOT:
            path.append(self.tokens[node])
            node = self.parents[node]
        return tuple(path[::-1])


class UnionSession(Session):
    """Session of one request: its text on the model, the memory's session, and the candidates of the last draft."""

    def __init__(self, text: RowText, memory: Session, mixture: Mixture, settings: UnionSettings) -> None:
        self._text, self._memory, self._mixture, self._settings = text, memory, mixture, settings
        self._seen: dict[tuple[int, ...], tuple[list[int], Float64]] = {}  # features, by the tokens from the root

    def propose(self, budget: Budget) -> DraftTree:
        """Return the most probable paths of memory and model combined."""
        self._seen = {}
        read = min(budget.depth, self._text.depth)  # levels that the model assigns probabilities to
        if min(budget.nodes, read) < 1:  # the model may have no positions left
            return self._memory.propose(budget)
        trees = budget.trees and self._text.trees
        proposed = self._memory.propose(Budget(nodes=self._settings.proposed, depth=budget.depth, trees=trees))
        found = self._judge(proposed, read)
        for _ in range(self._settings.depth):
            if not self._extend(found, budget.nodes, read, trees):
                break
        draft = top_nodes(found.tokens, found.parents, found.weights, budget.nodes)
        self._seen = {found.path(node): each for node, each in found.features.items()}
        return draft.within(depth=budget.depth, trees=budget.trees)

    def _judge(self, proposed: DraftTree, read: int) -> UnionDraft:
        """Return the proposed tree with the model's own candidates added at each of its nodes.

        Nodes deeper than `read` levels keep the memory's probabilities.
        """
        found = UnionDraft()
        [q] = self._text.begin()
        distributions, rows = {ROOT: q}, dict[int, int]()
        if inner := [node for node, depth in enumerate(proposed.depths().tolist()) if depth < read]:
            tokens, parents = proposed.tokens.tolist(), proposed.parents.tolist()
            place = {ROOT: ROOT} | {node: i for i, node in enumerate(inner)}
            first = self._text.rows
            above = [ROOT if parents[node] == ROOT else first + place[parents[node]] for node in inner]
            numbers, after = self._text.read([tokens[node] for node in inner], above)
            distributions |= zip(inner, after, strict=True)
            rows = dict(zip(inner, numbers, strict=True))
        nodes = {ROOT: ROOT}
        for node in range(-1, len(proposed)):
            if node not in nodes:
                continue
            above_weight = 1.0 if node == ROOT else float(proposed.weights[node])
            known = {int(proposed.tokens[child]): int(child) for child in proposed.children(node)}
            shares = {
                token: float(proposed.weights[child]) / max(above_weight, MINIMUM) for token, child in known.items()
            }
            if node in distributions:
                added = self._add(found, nodes[node], distributions[node], shares)
            else:
                added = found.add(nodes[node], list(shares), [min(1.0, share) for share in shares.values()])
            for token, child in known.items():
                nodes[child] = added[token]
                if child in rows:
                    found.rows[added[token]] = rows[child]
        return found

    def _add(self, found: UnionDraft, parent: int, q: Tensor, shares: dict[int, float]) -> dict[int, int]:
        """Add the candidates below a node and return the new nodes by token."""
        best, ids = best_tokens(q[None], min(self._settings.top_k, len(q)))
        given = dict(zip(ids[0].tolist(), best[0].tolist(), strict=True))
        given |= {token: float(q[token]) for token in shares if token not in given}
        features = np.array([features_of(p, shares.get(token)) for token, p in given.items()])
        found.features[parent] = list(given), features
        return found.add(parent, list(given), self._mixture.probabilities(features).tolist())

    def _extend(self, found: UnionDraft, maximum: int, read: int, trees: bool) -> bool:
        """Extend the most probable nodes that the model has not read; return whether there were any."""
        settings = self._settings
        min_probability = max(
            settings.min_probability, sorted(found.weights)[-maximum] if len(found.weights) > maximum else 0
        )
        open_ = [
            node
            for node, weight in enumerate(found.weights)
            if node not in found.features and weight > min_probability and found.depths[node] < read
        ]
        if not trees:
            open_ = [node for node in open_ if found.rows[found.parents[node]] == self._text.rows - 1]
        open_ = sorted(open_, key=lambda node: -found.weights[node])[: settings.top_k if trees else 1]
        if not open_:
            return False
        above = [found.rows[found.parents[node]] for node in open_]
        rows, distributions = self._text.read([found.tokens[node] for node in open_], above)
        for node, row, q in zip(open_, rows, distributions, strict=True):
            found.rows[node] = row
            self._add(found, node, q, {})
        return True

    def forecast(self, nodes: int) -> Float64:
        """Return an empty forecast: the passes of the model do not depend on the number of nodes."""
        return np.empty(0)

    def unread(self) -> int:
        return self._text.unread

    def observe(self, verified: Verified) -> None:
        """Update the model's text, the memory and the mixture with the target's choices."""
        self._mixture.learn_path(self._seen, verified.tokens.tolist())
        self._seen = {}
        self._text.observe(verified)
        self._memory.observe(verified)

    def close(self) -> None:
        self._memory.close()
        self._text.release()
