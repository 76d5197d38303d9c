"""A request whose drafts come from a subset of the target's own layers, on the target's own cache.

The cache holds the keys of all layers for all committed tokens but the root, so a draft begins with a pass over the
root. Its rows have no keys in the layers that were left out, so they are dropped before the target's pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from speculant.core.drafter import Budget, Session, Start, Verified
from speculant.core.engine import TargetCache
from speculant.core.sampler import Sampling
from speculant.core.tree import ROOT, DraftTree, Proposal
from speculant.drafters.layers.subsets import Layers
from speculant.drafters.models.shapes import Level, Shape
from speculant.drafters.models.warping import warped


class LentText:
    """The committed text on the target's cache, and the rows of the draft that grows below it.

    Attributes:
        target: the cache, which stays the sequence's.
        layers: those that draft.
    """

    def __init__(self, target: TargetCache, sampling: Sampling, layers: Layers) -> None:
        self.target, self.layers, self._sampling = target, layers, sampling
        self._root, self._count = -1, 0

    @property
    def depth(self) -> int:
        """How deep a draft may be."""
        return self.target.depth

    def begin(self) -> Tensor:
        """Return q [1, V] after the root, whose row is appended."""
        self._count = 0
        return self._forward([self._root], [ROOT])

    def read(self, tokens: Sequence[int], above: Sequence[int]) -> tuple[list[int], Tensor]:
        """Run nodes through the layers; return their rows and q [n, V] after them.

        Args:
            tokens: n of them.
            above: the row above each, -1 for the root.
        """
        first = self._count
        q = self._forward(tokens, [max(0, row) for row in above])  # the root's own row is row 0
        return list(range(first, self._count)), q

    def drop(self) -> None:
        """Drop the rows of a draft."""
        self.target.rollback()

    def observe(self, verified: Verified) -> None:
        """Take the new root."""
        self._root = int(verified.tokens[-1])

    def _forward(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        result = self.target.forward(np.array(tokens, np.int32), np.array(parents, np.int32), layers=self.layers)
        self._count += len(tokens)
        if not self._sampling.temperature:
            return torch.as_tensor(result.logits.float().softmax(-1))
        return warped(result.logits, self._sampling)


class LayerSession(Session):
    """One request: its text, and the shape that its drafts grow into."""

    def __init__(self, start: Start, layers: Layers, shape: Shape) -> None:
        assert start.target is not None  # lent by every path that decodes with a model
        self._text = LentText(start.target, start.sampling, layers)
        self._start, self._shape, self._round = start, shape, 0

    def propose(self, budget: Budget) -> DraftTree:
        """Return a draft. Asked again before `observe`, it draws the same tokens again."""
        depth = min(budget.nodes, budget.depth, self._text.depth, self._shape.passes)
        if depth < 1:
            return DraftTree.empty()
        try:
            return self._grow(depth, budget)
        finally:
            self._text.drop()

    def _grow(self, depth: int, budget: Budget) -> DraftTree:
        shape, generator = self._shape, self._generator()
        sampled = bool(self._start.sampling.temperature) and not shape.choosing
        tokens, parents, weights, rows = list[int](), list[int](), list[float](), list[int]()
        level, q = [ROOT], self._text.begin()
        laws = [q]
        for d in range(1, depth + 1):
            joint = [1.0 if node == ROOT else weights[node] for node in level]
            room = budget.nodes if shape.choosing else budget.nodes - len(tokens)
            found = shape.expand(Level(d, q, joint, room, sampled, generator))
            found = found if budget.trees else found[:1]
            first = len(tokens)
            for each in found:
                tokens.append(each.token)
                parents.append(level[each.parent])
                weights.append(min(1.0, each.probability) * joint[each.parent])
                rows.append(ROOT)
            level = [first + place for place in shape.select(weights[first:])]
            if not level or d == depth or (not shape.choosing and len(tokens) >= budget.nodes):
                break
            above = [ROOT if parents[node] == ROOT else rows[parents[node]] for node in level]
            read, q = self._text.read([tokens[node] for node in level], above)
            for node, row in zip(level, read, strict=True):
                rows[node] = row
            laws.append(q)
        if shape.choosing:
            tokens, parents, weights = _heaviest(tokens, parents, weights, budget.nodes)
        return DraftTree(
            np.array(tokens, np.int32),
            np.array(parents, np.int32),
            np.array(weights, np.float32),
            Proposal(torch.cat(laws), shape.drawn) if sampled else None,
        )

    def observe(self, verified: Verified) -> None:
        """Take the new root, and learn which nodes were accepted."""
        self._text.observe(verified)
        if len(verified.tree):
            self._shape.learn(int(verified.tree.depths().max()), len(verified.path))
        self._round += 1

    def close(self) -> None:
        """The cache stays the sequence's."""

    def _generator(self) -> torch.Generator:
        """Return the random stream of this round."""
        seed = self._start.seed
        own = np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, self._round))
        return torch.Generator().manual_seed(int(own.generate_state(1, np.uint64)[0] >> np.uint64(1)))


def _heaviest(
    tokens: list[int], parents: list[int], weights: list[float], most: int
) -> tuple[list[int], list[int], list[float]]:
    """Return the most probable nodes, best first; all nodes above one are as probable, so none is missing."""
    order = sorted(range(len(tokens)), key=lambda node: (-weights[node], node))[:most]
    place = {ROOT: ROOT} | {node: i for i, node in enumerate(order)}
    return [tokens[each] for each in order], [place[parents[each]] for each in order], [weights[each] for each in order]
