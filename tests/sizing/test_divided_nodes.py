"""Sharing the nodes of a pass between sequences: against every way to share them, and their cost against their gain."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from speculant.core.tree import DraftTree
from speculant.sizing.contract import Sizing
from speculant.sizing.division import best_size, divide_nodes, least_cost
from speculant.sizing.fixed import FixedSizing
from speculant.sizing.state import SequenceSizing
from trees import chain, random_draft
from walks import adaptive, curve, observe, sampled


def sizes(sizing: Sizing, states: list[SequenceSizing], drafts: list[DraftTree]) -> list[int]:
    """Return how many nodes of each draft a pass takes."""
    return [len(draft) for draft in sizing.trim(states, drafts)]


def test_shares_gain_as_much_as_any_heads_can() -> None:
    """Guards the choice, by brute force over all ways to cut the drafts to so many nodes together."""
    source = np.random.default_rng(1)
    for _ in range(40):
        gains = [np.sort(source.random(source.integers(0, 4)))[::-1] for _ in range(3)]
        for nodes in range(sum(map(len, gains)) + 1):
            kept = divide_nodes(gains, nodes)
            assert sum(kept) == nodes
            best = max(
                sum(gain[:n].sum() for gain, n in zip(gains, each, strict=True))
                for each in product(*(range(len(gain) + 1) for gain in gains))
                if sum(each) == nodes
            )
            assert sum(gain[:n].sum() for gain, n in zip(gains, kept, strict=True)) == pytest.approx(best)
    assert divide_nodes([], 0) == []


def test_the_best_size_is_that_of_every_size_compared() -> None:
    """Guards the kernels that price nodes, by brute force; rows beyond the curve cost as much as its last."""
    source = np.random.default_rng(3)
    for _ in range(100):
        gains, curve = np.sort(source.random(6))[::-1].copy(), 1 + np.cumsum(source.random(6))
        base, room, price, drafting = int(source.integers(0, 4)), int(source.integers(-1, 8)), source.random(), 0.1
        costs = [curve[min(base + n, 5)] - curve[base] for n in range(9)]
        net = [gains[:n].sum() - price * (costs[n] + drafting * n) for n in range(min(6, max(0, room)) + 1)]
        nodes, worth = best_size(gains, curve, base, room, price, drafting)
        assert net[nodes] == pytest.approx(max(net))
        assert worth == pytest.approx(price * (costs[nodes] + drafting * nodes))
        assert least_cost(curve, base, 2, 8) == pytest.approx(min(costs[n] / n for n in range(2, 9)))


def test_a_fixed_budget_goes_where_it_gains_most() -> None:
    """Guards the sum of nodes, and sequences about which nothing is known from taking any."""
    source, sizing = np.random.default_rng(2), FixedSizing(10)
    drafts = [random_draft(source, 12, 30) for _ in range(3)] + [DraftTree.empty(), chain(0.9, 0.8, 0.7)]
    states = [sizing.open() for _ in drafts]
    cut = sizing.trim(states, drafts)
    assert sum(map(len, cut)) == 10
    assert len(cut[3]) == 0
    assert all(one.tokens.tolist() == draft.tokens[: len(one)].tolist() for one, draft in zip(cut, drafts, strict=True))
    assert sizes(FixedSizing(99), states, drafts) == [len(draft) for draft in drafts]
    assert FixedSizing(3).trim([], []) == []


def test_acceptance_is_the_sequences_own() -> None:
    """Guards a sequence whose drafts are accepted from one whose drafts never are, though both estimate the same."""
    sizing = FixedSizing(2)
    bad, good = sizing.open(), sizing.open()
    for _ in range(50):
        observe(sizing, [bad, good], [chain(0.6, 0.4)] * 2, [0, 2], target=1.0)
    assert sizes(sizing, [bad, good], [chain(0.6, 0.4)] * 2) == [0, 2]


def test_sampled_drafts_are_kept_whole() -> None:
    """Guards losslessness: dropping sampled nodes by their value would bias the output."""
    drafts = [sampled(0.1, 0.01), chain(0.9, 0.8, 0.7)]
    for sizing, expected in ((FixedSizing(2), [2, 2]), (adaptive(curve(3.0)), [2, 0])):
        assert sizes(sizing, [sizing.open(), sizing.open()], drafts) == expected


def test_adaptive_sizes_spend_what_pays() -> None:
    """Guards free nodes, expensive ones, and the rate of plain decoding in a batch of the same size."""
    drafts = [chain(0.9, 0.5, 0.2), chain(0.3, 0.05)]
    # Plain decoding yields 2 tokens in 1.15 seconds; a node must gain 2 / 1.15 * 0.15 = 0.26 of a token.
    for cost, expected in ((0.0, [3, 2]), (1.0, [0, 0]), (0.15, [2, 1])):
        sizing = adaptive(curve(cost))
        assert sizes(sizing, [sizing.open(), sizing.open()], drafts) == expected


def test_adaptive_sizes_learn_the_price_of_time() -> None:
    """Guards the price: where rounds yield more tokens than plain decoding would, a poor node no longer pays."""
    drafts, sizing = [chain(0.9, 0.5, 0.2), chain(0.3, 0.05)], adaptive(curve(0.15))
    states = [sizing.open(), sizing.open()]
    before = sizes(sizing, states, drafts)
    fresh = [sizing.open(), sizing.open()]
    for _ in range(50):
        kept = sizing.trim(states, drafts)
        observe(sizing, states, kept, [0, 0], tokens=3, target=1 + 0.15 * (1 + sum(map(len, kept))))
    after = sizes(sizing, fresh, drafts)
    assert before == [2, 1]
    assert after == [1, 0]


def test_unmeasured_costs_are_climbed_in_batches_too() -> None:
    """Guards batches without a stored curve: they come to draft though no pass has fewer rows than sequences."""
    sizing, drafts, taken = adaptive(None), [chain(0.9, 0.8, 0.7), chain(0.9, 0.8, 0.7)], list[int]()
    states = [sizing.open(), sizing.open()]
    for _ in range(60):
        asked = sizing.nodes(states)
        kept = sizing.trim(states, [draft.head(n) for draft, n in zip(drafts, asked, strict=True)])
        taken.append(sum(map(len, kept)))
        accepted = [len(draft) for draft in kept]
        observe(sizing, states, kept, accepted, target=1 + 0.01 * (1 + taken[-1]))
    assert taken[0] == 0
    assert taken[-1] == 6


def test_sequences_pause_alone() -> None:
    """Guards a batch in which one sequence's drafts never pay: it is asked rarely, its neighbour in every round."""
    sizing = adaptive(curve(0.02))
    bad, good = sizing.open(), sizing.open()
    asked = [0, 0]
    for _ in range(200):
        budgets = sizing.nodes([bad, good])
        asked = [count + (budget > 0) for count, budget in zip(asked, budgets, strict=True)]
        drafts = [chain(*[0.4] * min(n, 4)) if n else DraftTree.empty() for n in budgets]
        kept = sizing.trim([bad, good], drafts)
        observe(sizing, [bad, good], kept, [0, len(kept[1])], target=1.0, draft=0.1)
    assert asked[1] > 190
    assert asked[0] < 100
