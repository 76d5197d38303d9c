"""Trees of the most probable paths: what is not expanded could not have been in the draft, or would not pay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from speculant.core.drafter import Budget, SessionRequest, Verified
from speculant.core.tree import DraftTree
from speculant.drafters.models.level_session import LevelSession, LevelText
from speculant.drafters.models.shapes import BestFirst
from speculant.drafters.models.tree_acceptance import LevelGains
from trees import paths_of


class Text(LevelText):
    """Distributions over 12 tokens that depend on the path alone; it counts the rows of each level."""

    depth, trees = 20, True

    def __init__(self, seed: int, spread: float = 2.0) -> None:
        self.seed, self.spread, self.rows, self.levels = seed, spread, list[tuple[int, ...]](), list[int]()

    def begin(self) -> Tensor:
        self.rows, self.levels = [], []
        return self.distribution(())[None]

    def read(self, tokens: Sequence[int], above: Sequence[int]) -> tuple[list[int], Tensor]:
        first = len(self.rows)
        paths = [(*(self.rows[row] if row >= 0 else ()), token) for token, row in zip(tokens, above, strict=True)]
        self.rows += paths
        self.levels.append(len(paths))
        return list(range(first, len(self.rows))), torch.stack([self.distribution(path) for path in paths])

    def distribution(self, path: tuple[int, ...]) -> Tensor:
        """Return the distribution after a path."""
        random = np.random.default_rng([self.seed, len(path), *path])
        return torch.tensor(self.spread * random.normal(size=12)).softmax(0).float()

    def observe(self, verified: Verified) -> None:
        return

    def release(self) -> None:
        return


def draft(text: Text, budget: Budget, acceptance: LevelGains | None = None) -> DraftTree:
    """Return a draft of up to four levels."""
    shape = BestFirst(acceptance or LevelGains(), depth=4, top_k=5, min_probability=0.0)
    return LevelSession(text, SessionRequest(prompt=np.array([1], np.int32)), shape).propose(budget)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("nodes", [1, 4, 9])
def test_nodes_that_are_not_expanded_would_not_be_drafted(seed: int, nodes: int) -> None:
    """Guards the shortcut: the draft is the best part of one with a budget for all, and reads fewer rows."""
    text, wide = Text(seed), Text(seed)
    found, every = draft(text, Budget(nodes=nodes, depth=4)), draft(wide, Budget(nodes=64, depth=4))
    best = every.head(nodes)
    assert set(paths_of(found)) == set(paths_of(best)) or nodes < 4  # a budget of 3 nodes has 3 levels
    assert sum(text.levels) <= sum(wide.levels)
    assert max(text.levels, default=0) <= nodes


def test_trees_end_where_a_level_costs_more_than_it_gains() -> None:
    """Guards the price of a level: none ends a tree early, a high one leaves the first level alone."""
    text = Text(1)
    depths = [int(draft(text, Budget(nodes=64, depth=4, level_price=price)).depths().max()) for price in (0, 0.4, 2)]
    assert depths[0] == 4
    assert depths == sorted(depths, reverse=True)
    assert depths[-1] == 1


def test_levels_that_were_never_accepted_are_not_grown() -> None:
    """Guards measured gains: a head that is right once and never twice grows one level where levels cost."""
    counts = LevelGains()
    for _ in range(200):
        counts.observe([0.5, 0.3, 0.2], 1)
    assert draft(Text(1), Budget(nodes=64, depth=4, level_price=0.2), counts).depths().max() == 1
    assert draft(Text(1), Budget(nodes=64, depth=4), counts).depths().max() == 4


def test_trees_are_chains_where_nodes_are_expensive() -> None:
    """Guards the price of a node: rows whose children could not pay are not read."""
    text = Text(3, spread=4.0)
    draft(text, Budget(nodes=64, depth=4, node_price=0.3))
    assert set(text.levels) == {1}
    draft(text, Budget(nodes=64, depth=4))
    assert max(text.levels) == 5


def test_levels_are_worth_what_they_gained() -> None:
    """Guards the ratio: how often a level was right over the probability it extended, whatever drafters claim."""
    counts = LevelGains()
    for turn in range(2000):
        counts.observe([0.5, 0.25], 3 if turn % 4 == 0 else 2 if turn % 2 == 0 else 1)
    assert counts.ratios(3) == pytest.approx([1.0, 1.0, 1.0], abs=0.05)
    for turn in range(2000):
        counts.observe([0.25] if turn % 2 else [], 2 if turn % 2 else 0)
    assert counts.ratios(1) == pytest.approx([3.55], abs=0.1)  # 4, but for two trials of the prior
