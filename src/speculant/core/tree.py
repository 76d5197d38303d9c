"""DraftTree: the drafted tokens below the root.

The N nodes of a draft descend from the root, the last committed token, which is not a node. Arrays list parents before
children and the best nodes first, so every prefix of them is itself a valid tree. Row 0 of a target pass is the root,
row i + 1 is node i. They may be followed by query rows, which are computed for their logits only (`Queries`).

exports.py computes the attention mask that some engines take.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

ROOT = -1
UNLIMITED = 1 << 30  # nodes or levels: more than any text can have


@dataclass(frozen=True, slots=True, eq=False)
class Ahead:
    """A token drawn after the last node of a chain while the target's pass ran, and the q [V] it was drawn from."""

    token: int
    q: Any


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """The distributions that drafted tokens were sampled from. A draft whose tokens were all chosen has none.

    Attributes:
        q: [>= rows with children, V], row i is the distribution after row i (0: the root, i + 1: node i), warped like
            the target's; in the drafter's array type, on its device. Lossless rules never read rows without children.
        drawn: "iid" if siblings were drawn with replacement, so that they may be equal; "distinct" if without.
        chosen: Bool[N], True at nodes that were chosen rather than sampled; None if all were sampled.
        q_rows: Int32[N], the row of q that each node was drawn from, if siblings come from several drafters; the rows
            of q are then in any order. None if each node was drawn from the row of its parent.
        ahead: for a chain, a function that waits for the token drawn after it during the pass; returns None if there is
            none. If the whole chain is accepted, this token is tested to find the target's own.
    """

    q: Any
    drawn: Literal["iid", "distinct"] = "iid"
    chosen: Bool | None = None
    q_rows: Int32 | None = None
    ahead: Callable[[], Ahead | None] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Queries:
    """Rows added to a draft's pass for their logits only: never accepted, dropped or counted as nodes.

    They descend from the root separately from the draft, so dropping draft nodes does not affect them. They are the
    last Q of the N + 1 + Q rows of a pass. The window of Lookahead Decoding (Fu et al., 2024, arXiv 2402.02057)
    consists of them.

    Attributes:
        tokens: Int32[Q].
        parents: Int32[Q], index of the parent among the queries, -1 for the root; always smaller than the row's own.

    Raises:
        ValueError: the arrays disagree in length, or a parent does not come first.
    """

    tokens: Int32
    parents: Int32

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents):
            raise ValueError(f"tokens and parents differ in length: {len(self.tokens)}, {len(self.parents)}")
        if not ((self.parents >= ROOT) & (self.parents < np.arange(len(self)))).all():
            raise ValueError("every parent must come before its children, or be -1 for the root")

    def __len__(self) -> int:
        return len(self.tokens)

    def depths(self) -> Int32:
        """Return Int32[Q]: 1 for rows directly below the root."""
        return _depths(self.parents)


NO_QUERIES = Queries(np.empty(0, np.int32), np.empty(0, np.int32))


@dataclass(frozen=True, slots=True, eq=False)
class DraftTree:
    """A draft of N nodes, and the queries that share its pass.

    Attributes:
        tokens: Int32[N].
        parents: Int32[N], index of the parent, -1 for a child of the root; always smaller than the node's own.
        weights: Float32[N], the drafter's estimate of the joint probability, from the root, that the node is
            accepted; never above its parent's.
        proposal: the distributions that tokens were sampled from; None if every token was chosen.
        queries: rows computed for their logits only, within the budget's `queries`.
        levels: drafting time in units of one level's; None if it is the number of levels of the tree.

    Raises:
        ValueError: the arrays disagree in length, a parent does not come first, or a weight exceeds its parent's.
    """

    tokens: Int32
    parents: Int32
    weights: Float32
    proposal: Proposal | None = None
    queries: Queries = NO_QUERIES
    levels: float | None = None
    _depths: Int32 | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if not all(isinstance(each, np.ndarray) for each in (self.tokens, self.parents, self.weights)):
            raise ValueError("tokens, parents and weights are numpy arrays; DraftTree.from_paths makes them from lists")
        if len(self.parents) != n or len(self.weights) != n:
            raise ValueError(
                f"tokens, parents and weights differ in length: {n}, {len(self.parents)}, {len(self.weights)}"
            )
        weights = self.weights.tolist()
        for node, parent in enumerate(self.parents.tolist()):
            if not ROOT <= parent < node:
                raise ValueError("every parent must come before its children, or be -1 for the root")
            if not weights[node] <= (1.0 if parent == ROOT else weights[parent]):
                raise ValueError("a node's weight is a joint probability and cannot exceed its parent's, or 1")

    @classmethod
    def trusted(
        cls,
        tokens: Int32,
        parents: Int32,
        weights: Float32,
        *,
        queries: Queries = NO_QUERIES,
        levels: float | None = None,
    ) -> DraftTree:
        """Return a tree of chosen tokens without validation, for kernels that guarantee its validity."""
        tree = object.__new__(cls)
        fields = {"tokens": tokens, "parents": parents, "weights": weights, "proposal": None, "queries": queries}
        for name, value in {**fields, "levels": levels, "_depths": None}.items():
            object.__setattr__(tree, name, value)
        return tree

    @classmethod
    def empty(cls, *, queries: Queries = NO_QUERIES) -> DraftTree:
        """Return a draft without nodes; if it has no queries, its target pass is a plain decoding step."""
        if queries is NO_QUERIES:
            return _EMPTY
        return cls(_EMPTY.tokens, _EMPTY.parents, _EMPTY.weights, queries=queries)

    @classmethod
    def from_paths(cls, paths: Iterable[Sequence[int]], weights: Iterable[float] | None = None) -> DraftTree:
        """Merge paths from the root into a tree; nodes of a shared prefix are merged and keep their largest weight.

        Without weights, the nodes keep the order of the paths and have weight 1 each.
        """
        listed = [list(path) for path in paths]
        given = [1.0] * len(listed) if weights is None else list(weights)
        nodes: dict[tuple[int, int], int] = {}
        tokens: list[int] = []
        parents: list[int] = []
        joint: list[float] = []
        for path, weight in zip(listed, given, strict=True):
            parent = ROOT
            for token in path:
                node = nodes.setdefault((parent, token), len(tokens))
                if node == len(tokens):
                    tokens.append(token)
                    parents.append(parent)
                    joint.append(weight)
                joint[node] = max(joint[node], weight)
                parent = node
        return cls(np.array(tokens, np.int32), np.array(parents, np.int32), np.array(joint, np.float32))

    def __len__(self) -> int:
        return len(self.tokens)

    def children(self, node: int) -> list[int]:
        """Return the children of a node (-1 for the root), best first."""
        return [int(i) for i in np.flatnonzero(self.parents == node)]

    def depths(self) -> Int32:
        """Return Int32[N]: 1 for children of the root. Computed once."""
        if self._depths is None:
            object.__setattr__(self, "_depths", _depths(self.parents))
        assert self._depths is not None
        return self._depths

    def path(self, node: int) -> Int32:
        """Return the node indices from the root's child down to `node`."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = int(self.parents[node])
        return np.array(nodes[::-1], np.int32)

    def rows(self, root: int) -> tuple[Int32, Int32]:
        """Return tokens and parents, Int32[N + 1 + Q] each, of the rows of a pass: root, nodes, queries.

        Parents are row numbers; the root's is -1.
        """
        nodes = len(self) + 1
        tokens, parents = np.empty((2, nodes + len(self.queries)), np.int32)
        tokens[0], parents[0] = root, ROOT
        tokens[1:nodes] = self.tokens
        np.add(self.parents, 1, out=parents[1:nodes])
        if len(self.queries):
            below = self.queries.parents
            tokens[nodes:] = self.queries.tokens
            parents[nodes:] = np.where(below == ROOT, 0, below + nodes)
        return tokens, parents

    def head(self, n: int) -> DraftTree:
        """Return the first n nodes, and all queries.

        Raises:
            ValueError: one of the dropped nodes was sampled; dropping it because of its value would bias the output.
        """
        if n >= len(self):
            return self
        if self.proposal is None:
            return DraftTree.trusted(
                self.tokens[:n], self.parents[:n], self.weights[:n], queries=self.queries, levels=self.levels
            )
        chosen = self.proposal.chosen
        if chosen is None or not chosen[n:].all():
            raise ValueError("a sampled node cannot be dropped after it was drawn; set the budget before")
        q_rows = self.proposal.q_rows
        proposal = replace(self.proposal, chosen=chosen[:n], q_rows=None if q_rows is None else q_rows[:n])
        return replace(
            self, tokens=self.tokens[:n], parents=self.parents[:n], weights=self.weights[:n], proposal=proposal
        )

    def below(self, path: Sequence[int]) -> DraftTree:
        """Return the subtree below a path of tokens from the root, with weights conditional on their acceptance.

        Empty if the tree does not contain the path. Queries, which descend from the root, are not included.

        Raises:
            ValueError: nodes were sampled.
        """
        if self.proposal is not None:
            raise ValueError("a sampled draft cannot be split after it was drawn")
        top = ROOT
        for token in path:
            found = [node for node in self.children(top) if self.tokens[node] == token]
            if not found:
                return DraftTree.empty()
            top = found[0]
        place = {top: ROOT}
        for node, parent in enumerate(self.parents.tolist()):
            if parent in place and node != top:
                place[node] = len(place) - 1
        kept = [node for node in place if node != top]
        share = 1.0 if top == ROOT else max(float(self.weights[top]), float(np.finfo(np.float32).tiny))
        return DraftTree(
            self.tokens[kept],
            np.array([place[int(self.parents[node])] for node in kept], np.int32),
            np.minimum(1, self.weights[kept] / np.float32(share)).astype(np.float32),
        )

    def within(self, *, depth: int, trees: bool = True) -> DraftTree:
        """Return the nodes at most `depth` deep (unless `trees`, only those on the best chain) and all queries.

        For drafters whose search ignores a budget's limits, before they return a draft of chosen tokens.

        Raises:
            ValueError: nodes were sampled.
        """
        if not len(self) or (trees and depth >= len(self)):
            return self
        if self.proposal is not None:
            raise ValueError("a sampled draft cannot be cut after it was drawn; set the budget before")
        kept = np.arange(len(self)) if trees else self.best_chain()
        kept = kept[self.depths()[kept] <= depth]
        return self._only(kept)

    def pruned(self, allowed: Bool) -> DraftTree:
        """Return the allowed nodes all of whose ancestors are allowed, in order; and all queries.

        Args:
            allowed: Bool[N].

        Raises:
            ValueError: nodes were sampled.
        """
        if allowed.all():
            return self
        if self.proposal is not None:
            raise ValueError("a sampled draft cannot be pruned after it was drawn; mask the target's p instead")
        reached = np.append(allowed, True)  # the root's index, -1, refers to the last element
        for node, parent in enumerate(self.parents.tolist()):
            reached[node] &= reached[parent]
        return self._only(np.flatnonzero(reached[:-1]))

    def with_levels(self, levels: float) -> DraftTree:
        """Return this tree of chosen tokens with its drafting time set to that of `levels` levels."""
        return DraftTree.trusted(self.tokens, self.parents, self.weights, queries=self.queries, levels=levels)

    def _only(self, kept: Int64 | Int32) -> DraftTree:
        """Return the nodes `kept`, ascending and including parents, and all queries; for trees of chosen tokens."""
        if len(kept) == len(self):
            return self
        renumbered = np.full(len(self) + 1, ROOT, np.int32)
        renumbered[kept] = np.arange(len(kept))
        return DraftTree.trusted(
            self.tokens[kept],
            renumbered[self.parents[kept]],
            self.weights[kept],
            queries=self.queries,
            levels=self.levels,
        )

    @staticmethod
    def merge(trees: Sequence[DraftTree], max_nodes: int) -> DraftTree:
        """Merge drafts of the same root: nodes with equal paths become one, which keeps the largest weight.

        Returns the `max_nodes` nodes of largest weight, in descending order.

        Raises:
            ValueError: a draft was sampled, and two samples at one position cannot become one node; or a draft has
                queries, whose rows would move.
        """
        if any(tree.proposal is not None for tree in trees):
            raise ValueError("sampled drafts cannot be merged: a node would have two proposals")
        if any(len(tree.queries) for tree in trees):
            raise ValueError("drafts with queries cannot be merged: their rows would move")
        found: dict[tuple[int, int], int] = {}
        tokens: list[int] = []
        weights: list[float] = []
        below: list[list[int]] = [[]]  # below[0] belongs to the root, below[i + 1] to node i
        for tree in trees:
            merged: list[int] = []
            for token, parent, weight in zip(
                tree.tokens.tolist(), tree.parents.tolist(), tree.weights.tolist(), strict=True
            ):
                above = ROOT if parent == ROOT else merged[parent]
                node = found.setdefault((above, token), len(tokens))
                if node == len(tokens):
                    tokens.append(token)
                    weights.append(weight)
                    below[above + 1].append(node)
                    below.append([])
                weights[node] = max(weights[node], weight)
                merged.append(node)

        kept: list[int] = []
        place: dict[int, int] = {ROOT: ROOT}
        parents: list[int] = []
        frontier = [(-weights[node], node, ROOT) for node in below[0]]
        heapq.heapify(frontier)
        while frontier and len(kept) < max_nodes:
            _, node, above = heapq.heappop(frontier)
            place[node] = len(kept)
            kept.append(node)
            parents.append(place[above])
            for child in below[node + 1]:
                heapq.heappush(frontier, (-weights[child], child, node))
        return DraftTree(
            np.array([tokens[node] for node in kept], np.int32),
            np.array(parents, np.int32),
            np.array([weights[node] for node in kept], np.float32),
        )

    def best_chain(self) -> Int32:
        """Return the path with the largest sum of weights: the chain with the most expected accepted tokens.

        For engines that verify chains only (vLLM, TensorRT-LLM).
        """
        if not len(self):
            return np.empty(0, np.int32)
        sums: list[float] = []
        for parent, weight in zip(self.parents.tolist(), self.weights.tolist(), strict=True):
            sums.append(weight + (0.0 if parent == ROOT else sums[parent]))
        return self.path(int(np.argmax(sums)))


_EMPTY = DraftTree(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.float32))  # for most plain rounds


def _depths(parents: Int32) -> Int32:
    """Return Int32[n]: 1 for children of the root."""
    depths: list[int] = []
    for parent in parents.tolist():
        depths.append(1 if parent == ROOT else depths[parent] + 1)
    return np.array(depths, np.int32)
