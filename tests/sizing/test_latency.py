"""What rounds cost: true through noise, and relative to how fast passes are just now."""

from __future__ import annotations

import numpy as np
import pytest

from speculant.sizing.latency import RoundCost, rising
from speculant.sizing.step_cost import StepCost

STEEP = StepCost(np.array([0.0, 64]), np.array([1.0, 65]))  # every node costs a pass


def test_noise_does_not_turn_the_curve() -> None:
    """More nodes never count as cheaper than fewer, and a single slow pass does not poison the sizes above it."""
    cost, random = RoundCost(most=64), np.random.default_rng(3)
    cost.learn(2, 9.0)
    for _ in range(200):
        nodes = int(random.choice([0, 1, 4, 8, 16, 32, 64]))
        cost.learn(nodes, (1 + nodes / 64) * (1 + 0.2 * random.random()))
    curve = cost.of(np.arange(65))
    assert (np.diff(curve) >= -1e-12).all()
    assert curve[[0, 64]] == pytest.approx([1.1, 2.2], rel=0.15)
    assert curve[2] < 3


def test_a_known_curve_is_corrected() -> None:
    """A curve of a quiet machine is scaled to what passes take now."""
    cost = RoundCost(most=64, known=STEEP)
    for _ in range(9):
        cost.learn(8, 18.0)
    assert cost.of(np.array([0, 8, 64])) == pytest.approx([2, 18, 130])


def test_a_slow_spell_is_not_held_against_a_size() -> None:
    """Another program that halves the machine's speed for a while makes all sizes slow, not the one tried then."""
    cost = RoundCost(most=64)
    for spell in (1.0, 2.0, 1.0):
        for nodes in [0, 4, 8, 16] * 10 if spell == 1 else [16] * 30:
            cost.learn(nodes, spell * (1 + nodes / 64))
    assert cost.curve[16] / cost.curve[0] == pytest.approx(1.25, rel=0.05)
    assert cost.level == pytest.approx(1, rel=0.1)


def test_sizes_are_tried_upwards_from_the_smallest_met() -> None:
    """Guards batches: their passes never have as few rows as the smallest size, which so cannot be waited for."""
    cost = RoundCost(most=71)
    assert cost.most == 0
    for _ in range(2):
        cost.learn(7, 0.01)
    assert cost.most == 12


def test_a_slow_first_pass_does_not_end_drafting() -> None:
    """Guards the first pass over several rows, for which code is loaded: the size costs what it did later, or below."""
    cost = RoundCost(most=64)
    for nodes, seconds in [(0, 1.0), (0, 1.0), (1, 9.0)]:
        cost.learn(nodes, seconds)
    assert cost.curve[1] < 1.1
    for _ in range(9):
        cost.learn(0, 1.0)
    cost.learn(1, 9.0)
    assert cost.curve[1] > 1.5
    for _ in range(200):
        cost.learn(0, 1.0)
    assert cost.curve[1] < 1.1


def test_drafting_is_known_by_the_node() -> None:
    """The time of drafting is a line over the nodes; what every round costs is no node's."""
    cost, random = RoundCost(most=64, known=STEEP), np.random.default_rng(2)
    for nodes in random.integers(0, 64, 400).tolist():
        cost.learn(0, 1.0)
        cost.learn_drafting(nodes, 0.3 + 0.01 * nodes)
    assert cost.drafting == pytest.approx(0.01, rel=0.1)


def test_a_stall_is_not_what_drafting_takes() -> None:
    """Guards the first rounds, in which code is compiled for seconds: drafting is not given up for it."""
    cost = RoundCost(most=64, known=STEEP)
    cost.learn(0, 1.0)
    times = [cost.learn_drafting(8, seconds) for seconds in (500.0, 0.1, 300.0, 0.1, 0.1, 200.0)]
    assert max(times) < 0.5


def test_rising() -> None:
    """Neighbours out of order become their mean, weighted by how often they were met."""
    assert rising([1.0, 3.0, 2.0, 4.0], [1, 1, 3, 1]) == [1.0, 2.25, 2.25, 4.0]
