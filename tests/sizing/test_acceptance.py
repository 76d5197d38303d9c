"""Acceptance model: acceptance of late by weight and depth, and the drafter's own estimate before that."""

from __future__ import annotations

import numpy as np
import pytest

from speculant.core.tree import DraftTree, Float64
from speculant.sizing.acceptance import AcceptanceModel, correct_weights
from trees import chain
from walks import sampled


def probabilities(model: AcceptanceModel, tree: DraftTree) -> Float64:
    """Return the probability that each node is accepted."""
    found: Float64 = correct_weights(tree.parents, tree.weights, model.bands)
    return found


def test_probabilities_are_those_of_late() -> None:
    """A request that changes its nature is followed, and the next one begins with what this one observed."""
    shared = AcceptanceModel()
    model = AcceptanceModel(shared)
    tree = chain(0.5, 0.5, 0.5, 0.5)
    for path in [[0, 1, 2, 3]] * 300:
        model.observe(tree, path)
    assert probabilities(model, tree)[0] == pytest.approx(1, abs=0.02)
    for _ in range(300):
        model.observe(tree, [])
    assert probabilities(model, tree)[0] < 0.1
    assert probabilities(AcceptanceModel(model), tree).tolist() == probabilities(model, tree).tolist()
    assert probabilities(shared, tree)[0] == 0.5


def test_observations_decide_and_the_estimate_where_there_are_none() -> None:
    """Weights that were never observed count as estimated; no probability is ever above 1."""
    model = AcceptanceModel()
    for _ in range(200):
        model.observe(chain(0.5), [0])
    assert probabilities(model, chain(0.5, 0.1)) == pytest.approx([1, 0.1], abs=0.03)


def test_depth_counts() -> None:
    """Deep nodes that are never accepted lose their probability, though shallow ones of the same weight keep theirs."""
    model = AcceptanceModel()
    for _ in range(300):
        model.observe(chain(0.5, 0.5, 0.5, 0.5), [0, 1])
    assert probabilities(model, chain(0.5, 0.5, 0.5)) == pytest.approx([1, 1, 0], abs=0.15)


def test_branches_have_the_depth_of_their_parents() -> None:
    """Guards the depth of siblings: it is the path's length, not the place in the draft."""
    model = AcceptanceModel()
    tree = DraftTree(np.arange(3, dtype=np.int32), np.full(3, -1, np.int32), np.full(3, 0.5, np.float32))
    for _ in range(300):
        model.observe(tree, [2])
    first, second, third = probabilities(model, tree)
    assert first == second == third == pytest.approx(1 / 3, abs=0.02)


def test_acceptance_by_depth() -> None:
    """The probability to reach a depth is the product of the rates of the depths above, of late."""
    model, source = AcceptanceModel(), np.random.default_rng(1)
    assert model.by_depth(3) == pytest.approx([0.7, 0.49, 0.343])
    for _ in range(1000):
        right = source.random(6) < np.array([0.9, 0.5, 0.9, 0.2, 0.9, 0.9])
        model.observe(sampled(*[1.0] * 6), list(range(int(np.argmin(np.append(right, False))))))
    assert model.by_depth(4) == pytest.approx(np.cumprod([0.9, 0.5, 0.9, 0.2]), abs=0.1)
    for _ in range(300):
        model.observe(sampled(1.0, 1.0), [])
    assert model.by_depth(1)[0] < 0.1


def test_depths_beyond_the_counted_ones() -> None:
    """Guards long chains: deeper than is counted, the deepest rate goes on; a budget of no nodes has no depths."""
    model = AcceptanceModel()
    for _ in range(50):
        model.observe(sampled(*[1.0] * 70), list(range(70)))
    deep = model.by_depth(80)
    assert deep.shape == (80,)
    assert (np.diff(deep) <= 0).all()
    assert deep[-1] / deep[-2] == pytest.approx(deep[62] / deep[61], rel=0.01)
    assert model.by_depth(0).shape == (0,)


def test_sampled_drafts_leave_the_bands_of_weight_alone() -> None:
    """Guards the drafter's estimates: those of sampled nodes are none, and would teach the bands nonsense."""
    model = AcceptanceModel()
    for _ in range(50):
        model.observe(sampled(0.5, 0.4), [])
    assert probabilities(model, chain(0.5)).tolist() == [0.5]
