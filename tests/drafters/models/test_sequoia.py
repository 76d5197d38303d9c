"""Sequoia's tree: optimal by brute force, and drawn in the shape that was solved for."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from speculant.core.tree import ROOT
from speculant.drafters.models.sequoia import AdaptiveTrees, BestTree, BestTrees
from speculant.drafters.models.shapes import Level
from speculant.drafters.models.tree_acceptance import (
    DEPTHS,
    SIBLINGS,
    LevelAcceptance,
    SiblingAcceptance,
    expected_gains,
)
from trees import make_tree


def acceptance(seed: int) -> np.ndarray:
    """Return random acceptances, which differ by depth and fall from sibling to sibling."""
    rates = np.sort(np.random.default_rng(seed).random((DEPTHS, SIBLINGS)), axis=1)[:, ::-1]
    return rates * np.cumprod(np.column_stack([np.ones(DEPTHS), 1 - rates[:, :-1]]), axis=1)


def laid_out(trees: BestTrees, nodes: int, levels: int) -> list[int]:
    """Return the parents of the best tree, level by level."""
    parents, level = list[int](), [(ROOT, nodes)]
    for depth in range(levels):
        following = []
        for node, below in level:
            for share in trees.children(below, depth, levels - depth):
                following.append((len(parents), share - 1))
                parents.append(node)
        level = following
    return parents


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("levels", [1, 2, 4])
def test_no_tree_gains_more(seed: int, levels: int) -> None:
    """Guards the dynamic programme: of all trees of up to 6 nodes none gains more, and its own is laid out."""
    rates = acceptance(seed)
    trees = BestTrees(rates, nodes=6, levels=levels, siblings=3)
    best = 0.0
    for nodes in range(1, 7):
        for parents in itertools.product(*(range(-1, i) for i in range(nodes))):
            tree = make_tree(range(nodes), parents)
            if tree.depths().max() <= levels and max(map(parents.count, range(-1, nodes))) <= 3:
                best = max(best, float(expected_gains(parents, rates)[-1, -1]))
        parents = laid_out(trees, nodes, levels)
        assert len(parents) <= nodes
        assert expected_gains(parents, rates)[-1, -1] == pytest.approx(trees.gains[levels - 1, nodes - 1])
        assert trees.gains[levels - 1, nodes - 1] == pytest.approx(best)


def test_gains_grow_with_nodes_and_levels() -> None:
    """Guards what sizing maximises: more nodes or levels never gain less."""
    gains = BestTrees(acceptance(1), nodes=32, levels=6, siblings=4).gains
    assert (np.diff(gains, axis=0) >= -1e-12).all()
    assert (np.diff(gains, axis=1) >= -1e-12).all()


def test_the_shape_is_the_solved_tree() -> None:
    """Guards drawing: each level has the nodes that the programme gives it, and only nodes with children are read."""
    shape, random = BestTree(AdaptiveTrees(SiblingAcceptance(), depth=3, siblings=4)), torch.Generator().manual_seed(2)
    wanted = laid_out(shape._trees.best, 9, 3)
    parents, level = list[int](), [ROOT]
    for depth in range(1, 4):
        q = torch.full((len(level), 7), 1 / 7)
        room = 9 - len(parents)
        found = shape.expand(Level(depth, q, [1.0] * len(level), room, 4 - depth, True, True, random))
        first = len(parents)
        parents += [level[each.parent] for each in found]
        level = [first + place for place in shape.select([1.0] * len(found))]
    assert sorted(parents) == sorted(wanted)
    assert set(level) == set()


def test_requests_share_the_trees() -> None:
    """Guards short requests: trees are not solved for each, and follow what any of them has learned."""
    trees = AdaptiveTrees(SiblingAcceptance(), depth=3, siblings=4)
    first, second = BestTree(trees), BestTree(trees)
    before, draft = trees.best, make_tree([1], [-1])
    assert BestTree(trees)._trees.best is before
    for shape in [first, second] * 16:
        shape.learn(draft, [])
    assert trees.best is not before
    assert second.forecast(4)[0, 0] == first.forecast(4)[0, 0] < before.gains[0, 0]


def test_acceptance_follows_what_was_accepted() -> None:
    """Guards the counts: the second sibling's share is that of texts in which the first was rejected."""
    counts, tree = SiblingAcceptance(), make_tree([1, 2, 3], [-1, -1, 0])
    for turn in range(4000):
        counts.observe(tree, [[0, 2], [0], [1], []][turn % 4])
    rates = counts.probabilities()
    assert rates[0, :2] == pytest.approx([0.5, 0.25], abs=0.01)
    assert rates[1, 0] == pytest.approx(0.5, abs=0.01)


def test_levels_count_only_what_was_grown() -> None:
    """Guards drafts that end early: a level that was not grown says nothing about its acceptance."""
    counts = LevelAcceptance()
    for turn in range(2000):
        counts.observe(3 if turn % 2 else 1, 3 if turn % 4 == 1 else 1)
    assert np.diff(counts.gains(3), prepend=0) == pytest.approx([1, 0.5, 0.5], abs=0.03)
