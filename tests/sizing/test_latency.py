"""Latency model: true through noise and stalls, and relative to how fast passes are at the moment."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from speculant.sizing.latency import LatencyModel
from speculant.sizing.step_cost import StepCost
from walks import curve

STEEP = curve(1.0)  # every node costs a pass
BLOCKS = (1.0, 1.9, 2.5, 2.9, 4.2, 4.5, 4.9, 4.5)  # passes over 1 to 8 rows, which llama.cpp computes four at a time
Stall = Callable[[int, np.random.Generator], float]


def test_noise_does_not_turn_the_curve() -> None:
    """More nodes never count as cheaper than fewer, and a single slow pass does not spoil the sizes above it."""
    model, random = LatencyModel(maximum=64), np.random.default_rng(3)
    model.observe(2, 9.0)
    for _ in range(300):
        nodes = int(random.choice([0, 1, 4, 8, 16, 32, 64]))
        model.observe(nodes, (1 + nodes / 64) * (1 + 0.2 * random.random()))
    curve = model.curve / model.curve[0]
    assert (np.diff(curve) >= -1e-12).all()
    assert curve[[32, 64]] == pytest.approx([1.5, 2.0], rel=0.1)
    assert curve[2] < 1.5


def test_a_known_curve_is_corrected() -> None:
    """A curve of a quiet machine is scaled to what passes take now."""
    model = LatencyModel(maximum=64, known=STEEP)
    for _ in range(20):
        model.observe(8, 18.0)
    assert model.seconds(np.array([0, 8, 64])) == pytest.approx([2, 18, 130], rel=0.01)


@pytest.mark.xfail(reason="a spell met by one size alone still moves its cost by a tenth", strict=True)
def test_a_slow_spell_is_not_held_against_a_size() -> None:
    """Another program that halves the machine's speed for a while makes all sizes slow, not the one run then."""
    model = LatencyModel(maximum=64)
    for spell in (1.0, 2.0, 1.0):
        for nodes in [0, 4, 8, 16] * 10 if spell == 1 else [16] * 30:
            model.observe(nodes, spell * (1 + nodes / 64))
    assert model.curve[16] / model.curve[0] == pytest.approx(1.25, rel=0.05)
    assert model.level * model.curve[0] == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("nodes", [0, 16])
def test_speed_and_cost_do_not_drift_apart(nodes: int) -> None:
    """Guards long runs of one size under noise that is mostly slow: the costs of other sizes stay what they were."""
    model, random = LatencyModel(maximum=64), np.random.default_rng(5)
    for n in [0, 4, 8, 16] * 20:
        model.observe(n, 1 + n / 64)
    for _ in range(5000):
        model.observe(nodes, (1 + nodes / 64) * (1 + random.exponential(0.5)))
    assert model.curve[16] / model.curve[0] == pytest.approx(1.25, rel=0.2)


def test_sizes_are_tried_upwards_from_the_smallest() -> None:
    """Guards batches: their passes never have as few rows as the smallest size, which so cannot be waited for."""
    model = LatencyModel(maximum=71)
    assert model.maximum == 0
    for _ in range(2):
        model.observe(7, 0.01)
    assert model.maximum == 11


def test_a_slow_first_pass_does_not_end_drafting() -> None:
    """Guards the first pass over several rows, for which code is loaded: only a second slow pass makes a cost."""
    model = LatencyModel(maximum=64)
    for nodes, seconds in [(0, 1.0), (0, 1.0), (1, 9.0)]:
        model.observe(nodes, seconds)
    assert model.curve[1] < 1.1
    for _ in range(9):
        model.observe(0, 1.0)
    model.observe(1, 9.0)
    assert model.curve[1] > 1.5
    for _ in range(1000):
        model.observe(0, 1.0)
    assert model.curve[1] < 1.15


@pytest.mark.parametrize("known", [False, True])
def test_the_first_pass_of_a_process_does_not_set_the_scale(known: bool) -> None:
    """Guards "never slower": kernels are loaded in the first pass; plain passes would look expensive ever after."""
    model = LatencyModel(maximum=64, known=curve(0.05) if known else None)
    model.observe(0, 300.0)
    if not known:
        model.observe(0, 1.0)
    for rows in (1, 1, 3, 3, 7, 7) * 3:
        model.observe(rows, 1.0 + 0.05 * rows)
    assert model.seconds(np.array([0, 1, 7])) == pytest.approx([1.0, 1.05, 1.35], rel=0.03)


def test_no_size_costs_more_than_its_rows_one_by_one() -> None:
    """Guards the largest believable cost: a pass over a node takes at most two plain passes, whatever was measured."""
    model = LatencyModel(maximum=64)
    for nodes, seconds in [(0, 1.0)] * 9 + [(1, 13.0)] * 9:
        model.observe(nodes, seconds)
    assert model.curve[1] / model.curve[0] < 2.05


def test_expensive_sizes_are_tried_again_ever_more_rarely() -> None:
    """Guards both sides of forgetting: a size gets its chances, and one that stays expensive does not cost for ever."""
    model, tries = LatencyModel(maximum=1), list[int]()
    for turn in range(8000):
        nodes = int(turn > 9 and model.curve[1] / model.curve[0] < 1.3)
        model.observe(nodes, 1.0 + nodes)
        tries += [turn] * nodes
    assert 4 < len(tries) < 80
    assert tries[-1] > 1000
    assert len([turn for turn in tries if turn > 4000]) < 20


@pytest.mark.parametrize("known", [True, False])
def test_steps_are_known(known: bool) -> None:
    """Guards kernels that compute rows in blocks: what a block costs, and that rows just above it cost much more."""
    straight = StepCost(np.array([0.0, 7, 64]), np.array([1.0, 4.5, 30]))
    model, random = LatencyModel(maximum=64, known=straight if known else None), np.random.default_rng(4)
    for _ in range(600):
        nodes = int(random.integers(0, min(8, model.maximum + 1)))
        model.observe(nodes, BLOCKS[nodes] * (1 + 0.1 * random.random()))
    found = model.curve[:8] / model.curve[0]
    assert found == pytest.approx(BLOCKS, rel=0.12)
    assert found[4] - found[3] > 4 * (found[7] - found[5])


def test_untried_sizes_cost_more_than_tried_ones() -> None:
    """Guards steep costs: a size that was never tried is not taken for one that costs as much as the size below."""
    model = LatencyModel(maximum=64)
    for nodes in [0, 1, 3, 7] * 9:
        model.observe(nodes, BLOCKS[nodes])
    assert 5.2 < model.curve[11] / model.curve[0] < 7
    assert model.maximum == 11


def test_a_first_node_says_nothing_of_others() -> None:
    """Guards drafts of one node, which cost what verifying costs at all: more nodes are not taken to cost that each."""
    model = LatencyModel(maximum=64)
    for nodes in [0, 1] * 9:
        model.observe(nodes, 1.0 + 0.2 * nodes)
    assert model.curve[3] / model.curve[1] < 1.1


def test_a_size_tried_again_is_known_at_once() -> None:
    """Guards what follows forgetting: two passes restore a cost, and the machine is not taken for a slower one."""
    model = LatencyModel(maximum=1)
    for nodes in [0, 1] * 30 + [0] * 80:
        model.observe(nodes, 1.0 + nodes)
    assert model.curve[1] / model.curve[0] < 1.6
    for _ in range(2):
        model.observe(1, 2.0)
    assert model.curve[1] / model.curve[0] == pytest.approx(2, rel=0.15)
    assert model.level * model.curve[0] == pytest.approx(1, rel=0.05)


def bursts_at_first(turn: int, random: np.random.Generator) -> float:
    return 10.0 if turn < 12 and random.random() < 0.7 else 1.0


def bursts_in_the_middle(turn: int, random: np.random.Generator) -> float:
    return 10.0 if 200 <= turn % 400 < 220 else 1.0


def a_neighbour(turn: int, random: np.random.Generator) -> float:
    return 2.0 if 300 <= turn < 800 else 1.0


def two_states(turn: int, random: np.random.Generator) -> float:
    return 4.0 if random.random() < 0.3 else 1.0


@pytest.mark.parametrize("stall", [bursts_at_first, bursts_in_the_middle, a_neighbour, two_states])
def test_stalls_are_no_costs(stall: Stall) -> None:
    """Whatever else slows the machine down, the costs of sizes that are run in turn stay near the truth."""
    model, random = LatencyModel(maximum=64), np.random.default_rng(7)
    truth = StepCost(np.array([0.0, 16, 64]), np.array([1.0, 1.4, 4]))
    for turn in range(1200):
        nodes = min(int(random.choice([0, 1, 2, 4, 8, 16, 32])), model.maximum)
        cost = float(truth.of(np.array([nodes]))[0])
        model.observe(nodes, cost * stall(turn, random) * (1 + 0.05 * random.random()))
    rows = np.array([1, 4, 8, 16, 32])
    assert model.curve[rows] / model.curve[0] == pytest.approx(truth.of(rows), rel=0.2)


@pytest.mark.parametrize(("took", "maximum"), [(0.1, 3), (1.0, 7), (2.0, 11), (50.0, 15)])
def test_sizes_too_small_to_pay_are_skipped(took: float, maximum: int) -> None:
    """Guards expensive drafting: no draft is spent on sizes that gain less than it takes, nor on very large ones."""
    model = LatencyModel(maximum=64)
    for rows in (0, 0, 1, 1):
        model.observe(rows, 1.0)
        if rows:
            model.observe_drafting(1, took)
    assert model.maximum == maximum


def test_noise_does_not_make_passes_look_cheap() -> None:
    """Guards drafts in large batches, where a few per cent of a pass are worth many nodes: the mean is learned."""
    model, random = LatencyModel(maximum=64), np.random.default_rng(1)
    found = []
    for turn in range(3000):
        rows = min((0, 3, 15)[turn % 3], model.maximum)
        model.observe(rows, (1 + 0.05 * rows) * random.lognormal(0, 0.08 if rows else 0.01))
        found.append(model.curve[15] / model.curve[0] if turn > 500 else np.nan)
    assert np.nanmean(found) == pytest.approx(1.75 * np.exp(0.08**2 / 2), rel=0.025)
