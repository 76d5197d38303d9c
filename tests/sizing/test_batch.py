"""Sharing the nodes of a pass: against every way to share them, and what it costs against what it brings."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from speculant.sizing.batch import BestBudget, FixedBudget, gains, share

from speculant.core.tree import DraftTree, Proposal
from speculant.sizing.acceptance import Values
from speculant.sizing.latency import RoundCost
from speculant.sizing.step_cost import StepCost
from trees import chain, random_draft


def sampled(*weights: float) -> DraftTree:
    """Return a line of sampled nodes."""
    tree = chain(*weights)
    return DraftTree(tree.tokens, tree.parents, tree.weights, Proposal(np.ones((len(weights), 1), np.float32), False))


def test_shares_gain_as_much_as_any_heads_can() -> None:
    """Guards the choice, by brute force over all ways to cut the drafts to so many nodes together."""
    source = np.random.default_rng(1)
    for _ in range(40):
        worths = [np.sort(source.random(source.integers(0, 4)))[::-1] for _ in range(3)]
        for nodes in range(sum(map(len, worths)) + 1):
            kept = share(worths, nodes)
            assert sum(kept) == nodes
            best = max(
                sum(worth[:n].sum() for worth, n in zip(worths, each, strict=True))
                for each in product(*(range(len(worth) + 1) for worth in worths))
                if sum(each) == nodes
            )
            assert sum(worth[:n].sum() for worth, n in zip(worths, kept, strict=True)) == pytest.approx(best)
    assert share([], 0) == []


def test_a_fixed_budget_goes_where_it_gains_most() -> None:
    """Guards the sum of nodes, and requests that nothing is known of from taking any."""
    source = np.random.default_rng(2)
    trees = [random_draft(source, 12, 30) for _ in range(3)] + [DraftTree.empty(), chain(0.9, 0.8, 0.7)]
    cut = FixedBudget(10).cut(trees, [Values()] * 5)
    assert sum(map(len, cut)) == 10
    assert len(cut[3]) == 0
    assert all(one.tokens.tolist() == tree.tokens[: len(one)].tolist() for one, tree in zip(cut, trees, strict=True))
    assert [len(one) for one in FixedBudget(99).cut(trees, [Values()] * 5)] == [len(tree) for tree in trees]
    assert FixedBudget(3).cut([], []) == []


def test_values_are_the_requests_own() -> None:
    """Guards a request whose drafts come true from one whose drafts never do, though both promise the same."""
    good, bad = Values(), Values()
    for _ in range(50):
        good.learn(chain(0.6, 0.4), [0, 1])
        bad.learn(chain(0.6, 0.4), [])
    one, other = FixedBudget(2).cut([chain(0.6, 0.4)] * 2, [bad, good])
    assert (len(one), len(other)) == (0, 2)
    rising = gains([chain(0.5, 0.45)], [Values()])[0]
    assert (np.diff(rising) <= 0).all()


def test_sampled_drafts_are_kept_whole() -> None:
    """Guards losslessness: dropping sampled nodes by their value would bias the output."""
    trees = [sampled(0.1, 0.01), chain(0.9, 0.8, 0.7)]
    assert [len(tree) for tree in FixedBudget(2).cut(trees, [Values()] * 2)] == [2, 2]
    cost = RoundCost(most=20, known=StepCost(np.array([0.0, 20.0]), np.array([1.0, 50.0])))
    assert [len(tree) for tree in BestBudget(cost, most=8).cut(trees, [Values()] * 2)] == [2, 0]


def curve(per_node: float) -> RoundCost:
    """Return the cost of passes: a second, and so much for each row beside the first."""
    return RoundCost(most=40, known=StepCost(np.array([0.0, 40.0]), np.array([1.0, 1.0 + 40 * per_node])))


def test_the_best_budget_spends_what_pays() -> None:
    """Guards free nodes, dear ones, and the rate of plain decoding in a batch of the same size."""
    trees, values = [chain(0.9, 0.5, 0.2), chain(0.3, 0.05)], [Values(), Values()]
    assert [len(tree) for tree in BestBudget(curve(0.0), most=8).cut(trees, values)] == [3, 2]
    assert [len(tree) for tree in BestBudget(curve(1.0), most=8).cut(trees, values)] == [0, 0]
    # Plain decoding gives 2 tokens for 1.15 seconds; a node must be worth 2 / 1.15 * 0.15 = 0.26 of a token.
    assert [len(tree) for tree in BestBudget(curve(0.15), most=8).cut(trees, values)] == [2, 1]


def test_the_best_budget_learns_what_time_is_worth() -> None:
    """Guards the rate: where rounds bring more tokens than plain decoding would, a poor node does not pay any more."""
    trees, values = [chain(0.9, 0.5, 0.2), chain(0.3, 0.05)], [Values(), Values()]
    budget = BestBudget(curve(0.15), most=8)
    for _ in range(50):
        kept = budget.cut(trees, values)
        budget.learn(kept, 6, target=1 + 0.15 * (1 + sum(map(len, kept))), draft=0.0)
    assert [len(tree) for tree in budget.cut(trees, values)] == [1, 0]


def test_unmeasured_costs_are_climbed_in_batches_too() -> None:
    """Guards batches without a stored curve: they come to draft though no pass has fewer rows than seats."""
    cost, trees, values = RoundCost(most=40), [chain(0.9, 0.8, 0.7), chain(0.9, 0.8, 0.7)], [Values(), Values()]
    budget, sizes = BestBudget(cost, most=8), []
    for _ in range(40):
        kept = budget.cut(trees, values)
        sizes.append(sum(map(len, kept)))
        budget.learn(kept, 2 + sizes[-1], target=1 + 0.01 * (1 + sizes[-1]), draft=0.0)
    assert sizes[0] == 0
    assert sizes[-1] == 6
