"""The static tree with the most expected accepted tokens: Sequoia.

Chen et al.: "Sequoia: Scalable, Robust, and Hardware-aware Speculative Decoding", NeurIPS 2024, arXiv 2402.12374,
section 3.1: a dynamic programme over the number of nodes in each sibling's subtree. With A(d, k) the probability that
the k-th sibling at depth d is accepted if its parent was, the best m nodes below an accepted node at depth d gain

    G(d, m) = W(d, 1, m),    W(d, k, m) = max over 0 < j <= m of A(d + 1, k) (1 + G(d + 1, j - 1)) + W(d, k + 1, m - j)

A is measured during decoding, over all requests, so the tree adapts to the text. Siblings are drawn without
replacement. The number of nodes and levels is decided elsewhere, from the measured cost of passes (section 3.3 there).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from speculant.core.engine import MAX_NODES
from speculant.core.errors import UsageError
from speculant.core.tree import DraftTree, Float64
from speculant.drafters.models.shapes import Candidate, Level, Shape, check_max, draw_below
from speculant.drafters.models.tree_acceptance import DEPTHS, SIBLINGS, SiblingAcceptance

_EVERY = 32  # rounds after which the trees are recomputed


class BestTrees:
    """The best trees of up to N nodes and D levels for given acceptance probabilities."""

    def __init__(self, acceptance: Float64, *, nodes: int, levels: int, siblings: int) -> None:
        """Solve the dynamic programme.

        Args:
            acceptance: Float64[DEPTHS, SIBLINGS], see `SiblingAcceptance.probabilities`.
            nodes, levels: maximum size of a tree.
            siblings: maximum siblings below one node.
        """
        self._nodes, self._siblings = nodes, siblings
        sizes = np.arange(nodes + 1)
        self._offsets = sizes[:, None] - sizes[1:]  # nodes left of m after a child whose subtree has j
        self._splits: dict[
            tuple[int, int], npt.NDArray[np.int64]
        ] = {}  # by depth and levels left: [siblings, nodes + 1]
        self.gains = np.zeros((levels, nodes))  # row d - 1: gains of trees of at most d levels
        for maximum in range(1, levels + 1):
            below = np.zeros(nodes + 1)
            for depth in range(maximum - 1, -1, -1):
                below = self._solve(acceptance[min(depth, DEPTHS - 1)], below, (depth, maximum - 1 - depth))
            self.gains[maximum - 1] = below[1:]

    def _solve(self, acceptance: Float64, below: Float64, key: tuple[int, int]) -> Float64:
        """Return the gains of the best subtrees of 0, 1, ... nodes, given those one level below."""
        rest, split = np.zeros(self._nodes + 1), np.zeros((self._siblings, self._nodes + 1), np.int64)
        for k in range(self._siblings - 1, -1, -1):
            child = acceptance[k] * (1 + below[:-1])
            totals = np.where(self._offsets >= 0, child + rest[np.maximum(self._offsets, 0)], 0.0)
            split[k] = totals.argmax(1) + 1
            rest = totals.max(1)
        self._splits[key] = split
        return rest

    def children(self, nodes: int, depth: int, levels: int) -> list[int]:
        """Return how many of `nodes` each child's subtree gets, including the child.

        Args:
            nodes: number of nodes below a node.
            depth: depth of that node, 0 for the root.
            levels: number of levels that may follow it.
        """
        found, k = list[int](), 0
        if levels < 1:
            return found
        split = self._splits[depth, levels - 1]
        while nodes > 0 and k < self._siblings:
            found.append(int(split[k, nodes]))
            nodes -= found[-1]
            k += 1
        return found


class AdaptiveTrees:
    """The best trees for the acceptance measured so far, shared by all requests of a drafter.

    Attributes:
        acceptance: acceptance statistics.
        levels: maximum passes of the draft model per round.
        siblings: maximum siblings below one node.
        max_nodes: maximum nodes per draft.
        best: the trees, which are solved again every few rounds.
    """

    def __init__(self, acceptance: SiblingAcceptance, *, depth: int, siblings: int, max_nodes: int = MAX_NODES) -> None:
        """Solve the first trees.

        Args:
            acceptance: acceptance statistics, which are updated.
            depth: maximum passes of the draft model per round.
            siblings: maximum siblings below one node.
            max_nodes: maximum nodes per draft.

        Raises:
            UsageError: a number is out of range.
        """
        if not (1 <= depth <= DEPTHS and 1 <= siblings <= SIBLINGS):
            raise UsageError(
                f"depth must be from 1 to {DEPTHS} and siblings from 1 to {SIBLINGS}, not {depth} and {siblings}."
            )
        self.acceptance, self.siblings, self._rounds = acceptance, siblings, 0
        self.levels, self.max_nodes = depth, check_max(max_nodes)
        self.best = self._solve()

    def learn(self, draft: DraftTree, path: Sequence[int]) -> None:
        """Learn which nodes of a draft were accepted."""
        self.acceptance.observe(draft, path)
        self._rounds += 1
        if self._rounds % _EVERY == 0:
            self.best = self._solve()

    def _solve(self) -> BestTrees:
        acceptance = self.acceptance.probabilities()
        return BestTrees(acceptance, nodes=self.max_nodes, levels=self.levels, siblings=self.siblings)


class BestTree(Shape):
    """The best tree for the budget, with siblings drawn without replacement."""

    drawn: Literal["iid", "distinct"] = "distinct"
    choosing = False

    def __init__(self, trees: AdaptiveTrees) -> None:
        """Create the shape of a request."""
        self.passes, self._trees = trees.levels, trees
        self._best = trees.best  # of the draft in progress
        self._below: list[int] = []  # number of nodes to place below each node of the level

    def forecast(self, nodes: int) -> Float64:
        return self._trees.best.gains[:, :nodes]

    def expand(self, level: Level) -> list[Candidate]:
        if not level.trees:
            self._below = [level.levels - 1]
            return draw_below(level, 0, 1, distinct=True)
        if level.depth == 1:
            self._best, self._below = self._trees.best, [min(level.room, self._trees.max_nodes)]
        below, self._below = self._below, []
        found = list[Candidate]()
        for place, nodes in enumerate(below):
            shares = self._best.children(nodes, level.depth - 1, level.levels)
            drawn = draw_below(level, place, len(shares), distinct=True)
            self._below += [share - 1 for share in shares[: len(drawn)]]
            found += drawn
        return found

    def select(self, weights: Sequence[float]) -> list[int]:
        places = [place for place, below in enumerate(self._below[: len(weights)]) if below]
        self._below = [self._below[place] for place in places]
        return places

    def learn(self, draft: DraftTree, path: Sequence[int]) -> None:
        self._trees.learn(draft, path)
