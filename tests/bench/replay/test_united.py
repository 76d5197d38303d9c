"""A memory's drafts united with those of a head whose acceptance a trace recorded."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from scripted import recording
from speculant.bench.replay.player import ReplayResult, replay
from speculant.bench.replay.recorded import replay_recorded
from speculant.bench.replay.traces import Recording
from speculant.bench.replay.united import ChainChoice, ChainRates, UnitedDrafter, select_recorded
from speculant.core.drafter import Drafter
from speculant.drafters.mix.drafter import MixDrafter
from speculant.drafters.none import NoDrafter


def random_recordings(count: int = 6) -> list[Recording]:
    """Return outputs that repeat themselves in part, and yields of a head that is right at random."""
    chance = random.Random(1)
    phrases = [[chance.randrange(50) for _ in range(6)] for _ in range(6)]
    outputs = [[token for _ in range(12) for token in chance.choice(phrases)] for _ in range(count)]
    return [recording(each, e=[chance.choice((1, 1, 2, 3, 5, 9)) for _ in each]) for each in outputs]


def united(memory: Drafter, recordings: Sequence[Recording], nodes: int, *, chain: bool) -> ReplayResult:
    """Return the replay of a memory united with the head."""
    return replay(UnitedDrafter(memory, iter(recordings), "e"), recordings, nodes=nodes, chain=chain)


@pytest.mark.parametrize("chain", [False, True])
def test_without_a_memory_it_is_the_recorded_head(chain: bool) -> None:
    """Guards that a head is accepted as it was recorded, as a chain and as a tree of that chain alone."""
    recordings = random_recordings()
    for drafts in (1, 4, 20):
        expected = replay_recorded("e", recordings, drafts=drafts)
        assert united(NoDrafter(), recordings, drafts, chain=chain).accepted.tolist() == expected.accepted.tolist()


def test_a_tree_of_both_is_better_than_either() -> None:
    """Guards the reason for uniting, at the same number of nodes."""
    recordings = random_recordings(30)
    mix, head = replay(MixDrafter(vocabulary=50), recordings, nodes=16), replay_recorded("e", recordings, drafts=16)
    both = united(MixDrafter(vocabulary=50), recordings, 16, chain=False)
    assert both.mat > max(mix.mat, head.mat)
    assert both.drafting is not None
    assert both.drafting.nodes.max() <= 16


def test_a_memory_learns_as_it_does_alone() -> None:
    """Guards that the head's nodes leave no trace in the memory: every text that it is given is the output's."""
    recordings = [recording([1, 2, 3, 4, 5, 6, 7] * 4, e=[1] * 28)] * 2
    alone = replay(MixDrafter(vocabulary=50), recordings, nodes=8, chain=True)
    both = united(MixDrafter(vocabulary=50), recordings, 8, chain=True)
    assert both.accepted[-3:].tolist() == alone.accepted[-3:].tolist()


def test_what_is_replayed() -> None:
    """Guards that outputs end where the head's record does, and that requests without one are left out."""
    recordings = [recording([1, 2, 3], e=[1, 1]), recording([1]), recording([4, 5], e=[1, 2, 9])]
    assert [each.output.tolist() for each in select_recorded("e", recordings)] == [[1, 2], [4, 5]]


def test_rates() -> None:
    """Guards that a depth counts where the depths before it were right."""
    rates = ChainRates()
    for _ in range(400):
        rates.learn(1, 3)
    first, second, third = rates.weights(3).tolist()
    assert first > 0.99
    assert second < 0.01
    assert third == pytest.approx(0.7 * second)  # never reached


def test_the_choice_between_chains() -> None:
    """Guards that what either chain gained decides, where the memory is as sure as it is now."""
    choice = ChainChoice()
    assert choice.prefers_memory(3, 2.0, 1.0)
    for _ in range(9):
        choice.learn(3, 1, 2)
    assert not choice.prefers_memory(3, 2.0, 1.0)
    assert choice.prefers_memory(4, 2.0, 1.0)
