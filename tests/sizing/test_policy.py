"""Sizing: spends what pays by the costs and values it has met, and nothing where nothing does."""

from __future__ import annotations

import numpy as np
import pytest

from speculant.core.tree import DraftTree, Proposal
from speculant.sizing import acceptance as values
from speculant.sizing import exploration as lessons
from speculant.sizing.acceptance import Values
from speculant.sizing.exploration import Lessons
from speculant.sizing.latency import RoundCost
from speculant.sizing.policy import BestSize, FixedSize, Sizing, warm_up
from speculant.sizing.step_cost import StepCost
from trees import chain

STEEP = StepCost(np.array([0.0, 64]), np.array([1.0, 65]))  # every node costs a pass
FLAT = StepCost(np.array([0.0, 64]), np.array([1.0, 1.001]))


def best(known: StepCost | None) -> BestSize:
    """Return the sizing of a first request."""
    return BestSize(RoundCost(most=64, known=known), Values())


def play(sizing: Sizing, truth: StepCost, rate: float, rounds: int, seed: int = 0) -> tuple[float, list[int]]:
    """Draft chains whose every next node is right with a probability that the drafter knows.

    Returns the tokens per second and the sizes.
    """
    random, tokens, seconds, sizes = np.random.default_rng(seed), 0, 0.0, []
    for _ in range(rounds):
        budget = sizing.budget()
        tree = sizing.cut(chain(*rate ** np.arange(1, budget + 1)) if budget else DraftTree.empty())
        right = int(np.argmin(np.append(random.random(len(tree)) < rate, False)))
        cost = float(truth.of(np.array([len(tree)]))[0])
        sizing.learn(tree, list(range(right)), [7] * (right + 1), target=cost * (1 + 0.05 * random.random()), draft=0.0)
        tokens, seconds = tokens + right + 1, seconds + cost
        sizes.append(len(tree))
    return tokens / seconds, sizes


def test_a_fixed_size_is_fixed() -> None:
    """The user's number is taken as it is."""
    sizing, tree = FixedSize(7), chain(0.5, 0.1)
    assert (sizing.budget(), sizing.cut(tree), sizing.reason()) == (7, tree, "")


def test_free_nodes_are_all_spent_and_dear_ones_are_not() -> None:
    """Where a pass costs the same whatever its size everything pays; where a node costs a pass nothing does."""
    tree = chain(*0.8 ** np.arange(1, 40))
    assert len(best(FLAT).cut(tree)) > 25
    assert len(best(STEEP).cut(tree)) == 0


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("rate", [0.02, 0.5, 0.9])
def test_close_to_the_best_fixed_size(known: bool, rate: float) -> None:
    """With a measured curve or without, within 5 % of the best size that could have been set, in 600 rounds."""
    truth = StepCost(np.array([0.0, 16, 64]), np.array([1.0, 1.4, 4]))
    fixed = max(play(FixedSize(n), truth, rate, 600)[0] for n in (0, 1, 2, 4, 8, 12, 16, 24, 32))
    assert play(best(truth if known else None), truth, rate, 600)[0] > 0.95 * fixed


def test_an_overconfident_drafter_is_seen_through() -> None:
    """Nodes that never come true lose their worth, whatever the drafter says of them; then it is asked rarely."""
    sizing, asked = best(StepCost(np.array([0.0, 64]), np.array([1.0, 3]))), 0
    for _ in range(300):
        budget = sizing.budget()
        asked += budget > 0
        tree = sizing.cut(chain(*[0.9] * budget))
        sizing.learn(tree, [], [7], target=1.0 + len(tree) / 32, draft=0.05 * (budget > 0))
    assert len(tree) == 0
    assert asked < 100


def test_unknown_sizes_are_climbed_one_by_one() -> None:
    """Without a curve no round is more than a size above what has been met: a leap could cost many passes."""
    sizing = best(None)
    _, sizes = play(sizing, FLAT, 0.95, 200)
    assert sizes[0] == 0
    assert all(after <= max(1, 2 * max(sizes[: i + 1])) for i, after in enumerate(sizes[1:]))
    assert max(sizes) == 64


def test_sampled_drafts_are_left_whole() -> None:
    """Dropping sampled nodes by value would bias the output."""
    drawn = Proposal(np.full((2, 4), 0.25, np.float32), False)
    tree = DraftTree(np.array([1, 2], np.int32), np.array([-1, 0], np.int32), np.array([0.1, 0.01], np.float32), drawn)
    assert best(STEEP).cut(tree) is tree


def test_says_why() -> None:
    """The reason names the sizes and what they cost; before the first round there is none."""
    sizing = best(STEEP)
    assert sizing.reason() == ""
    sizing.learn(chain(0.5), [0], [0, 7], target=2.0, draft=0.1)
    assert sizing.reason().startswith("1.0 nodes a round, none in 0% of rounds: a pass over 1 takes 2.00 times as long")


def test_drafting_is_a_cost_too() -> None:
    """Where drafting takes longer than it saves it stops, though every node comes true."""
    sizing, asked = best(FLAT), 0
    for _ in range(300):
        budget = sizing.budget()
        asked += budget > 0
        tree = sizing.cut(chain(0.9) if budget else DraftTree.empty())
        right = list(range(len(tree)))
        sizing.learn(tree, right, [7] * (len(right) + 1), target=1.0, draft=2.0 * (budget > 0))
    assert asked < 80


def test_what_is_learned_from_counts() -> None:
    """A drafter that learns from rejected nodes gets more of them than their acceptance pays for, for a while."""
    gentle, tree = StepCost(np.array([0.0, 64]), np.array([1.0, 1.64])), chain(*[0.005] * 20)
    lessons = Lessons()
    sizing = BestSize(RoundCost(most=64, known=gentle), Values(), lessons)
    assert len(best(gentle).cut(tree)) == 0
    assert len(sizing.cut(tree)) == 20
    lessons.learn(tree, [3, 4, 5])
    sizing.learn(DraftTree.empty(), [], [4], target=1.0, draft=0.0)
    assert len(sizing.cut(tree)) == 0


def test_no_round_waits_for_a_compiler() -> None:
    """Guards the first request of a fresh installation: every kernel that a round runs has been compiled before."""
    warm_up()
    kernels = [values._worths, values._count, lessons._worth, lessons._learn]
    known = [len(kernel.signatures) for kernel in kernels]
    assert min(known) > 0
    sizing = BestSize(RoundCost(most=64, known=FLAT), Values(), Lessons())
    for _ in range(3):
        tree = sizing.cut(chain(0.9, 0.5))
        sizing.learn(tree, [0], [0, 7], target=1.0, draft=0.1)
    sizing.learn(DraftTree.empty(), [], [7], target=1.0, draft=0.1)
    assert [len(kernel.signatures) for kernel in kernels] == known
