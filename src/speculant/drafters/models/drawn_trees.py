"""Shapes of sampled trees: a fixed number of siblings below every node, or several independent sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from speculant.core.engine import MAX_NODES
from speculant.core.errors import UsageError
from speculant.core.tree import ROOT, DraftTree, Float64
from speculant.drafters.models.shapes import MAX_PASSES, Candidate, Level, Shape, check_max, draw_below
from speculant.drafters.models.tree_acceptance import LevelAcceptance, SiblingAcceptance, expected_gains


class Widths(Shape):
    """A fixed number of siblings below every node of a level.

    With replacement: SpecInfer (Miao et al., ASPLOS 2024, arXiv 2305.09781), expansion configurations. Without: MCSD
    (Yang et al. 2024, arXiv 2401.06706). A level that exceeds the budget is narrowed before anything is drawn.

    Attributes:
        parents: parents of the whole tree's nodes, level by level.
    """

    def __init__(
        self,
        widths: Sequence[int],
        acceptance: SiblingAcceptance,
        *,
        replacement: bool,
        choosing: bool = False,
        max_nodes: int = MAX_NODES,
    ) -> None:
        """Create the shape.

        Args:
            widths: siblings below each node, one number per level.
            acceptance: acceptance statistics shared by all requests.
            replacement: whether siblings are drawn with replacement.
            choosing: whether the most probable tokens are taken instead of drawn ones.
            max_nodes: maximum number of nodes that the widths may add up to.
        """
        if not widths or min(widths) < 1:
            raise UsageError(f"widths must be numbers of at least 1, one per level, not {list(widths)}.")
        nodes = sum(math.prod(widths[: i + 1]) for i in range(len(widths)))
        if nodes > check_max(max_nodes):
            raise UsageError(
                f"widths {','.join(map(str, widths))} make {nodes} nodes, more than max_nodes={max_nodes}."
            )
        self._widths, self._acceptance, self.choosing = tuple(widths), acceptance, choosing
        self.parents = _parents(widths)
        self.drawn: Literal["iid", "distinct"] = "iid" if replacement else "distinct"
        self.passes = len(widths)

    def expand(self, level: Level) -> list[Candidate]:
        width, places = self._widths[level.depth - 1], len(level.q)
        heads = sorted(range(places), key=lambda i: -level.weights[i])
        wide = dict.fromkeys(heads[: level.room // width], width)
        if len(wide) < places and level.room % width:
            wide[heads[len(wide)]] = level.room % width
        distinct = self.drawn == "distinct"
        return [each for place in sorted(wide) for each in draw_below(level, place, wide[place], distinct=distinct)]

    def forecast(self, nodes: int) -> Float64:
        return self.gains(self.parents[:nodes])

    def gains(self, parents: Sequence[int]) -> Float64:
        """Return what trees of the first nodes with these parents are expected to gain, see `expected_gains`."""
        return expected_gains(parents, self._acceptance.probabilities())

    def learn(self, draft: DraftTree, path: Sequence[int]) -> None:
        self._acceptance.observe(draft, path)


class Sequences(Shape):
    """K independent sequences with common prefixes merged: SpecTr (Sun et al., NeurIPS 2023, arXiv 2310.15141).

    A node that several sequences share has one child for each of them; equal children are kept, since K-SEQ counts
    them, and the first of them continues for all.
    """

    drawn: Literal["iid", "distinct"] = "iid"
    choosing = False
    passes = MAX_PASSES

    def __init__(self, count: int, acceptance: LevelAcceptance, *, max_nodes: int = MAX_NODES) -> None:
        """Create a shape of `count` sequences with at most `max_nodes` nodes; all requests share `acceptance`."""
        if not 1 <= count <= check_max(max_nodes):
            raise UsageError(f"sequences must be 1 to {max_nodes} (max_nodes), not {count}.")
        self._count, self._acceptance = count, acceptance
        self._shares: list[int] = [count]
        self._wide = count  # nodes per level; one if the most probable token is taken

    def expand(self, level: Level) -> list[Candidate]:
        shares = [self._count] if level.depth == 1 else self._shares
        self._wide = self._count if level.sampled and level.trees else 1
        if self._wide == 1:
            shares = [min(1, share) for share in shares]
        found, following = list[Candidate](), list[int]()
        room = level.room
        for place, share in enumerate(shares):
            drawn = draw_below(level, place, min(share, room), distinct=False) if share else []
            room -= len(drawn)
            tokens = [each.token for each in drawn]
            found += drawn
            following += [tokens.count(token) if i == tokens.index(token) else 0 for i, token in enumerate(tokens)]
        self._shares = following
        return found

    def select(self, weights: Sequence[float]) -> list[int]:
        places = [place for place, share in enumerate(self._shares) if share]
        self._shares = [self._shares[place] for place in places]
        return places

    def forecast(self, nodes: int) -> Float64:
        depth = max(1, nodes // self._wide)
        gains, levels = self._acceptance.gains(depth), np.arange(1, nodes + 1) // self._wide
        deepest = np.minimum(levels, np.arange(1, depth + 1)[:, None])
        return np.asarray(np.where(deepest > 0, gains[deepest - 1], 0.0), np.float64)

    def learn(self, draft: DraftTree, path: Sequence[int]) -> None:
        self._acceptance.observe(int(draft.depths().max()), len(path))


def _parents(widths: Sequence[int]) -> list[int]:
    """Return the parents of a tree with these widths, level by level."""
    parents, level = list[int](), [ROOT]
    for width in widths:
        first = len(parents)
        parents += [node for node in level for _ in range(width)]
        level = list(range(first, len(parents)))
    return parents
