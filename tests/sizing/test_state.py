"""Rounds of a pause are counted in groups: nothing of them is lost, and nobody waits longer."""

from __future__ import annotations

import numpy as np
import pytest

from speculant.core.drafter import SessionRequest
from speculant.core.tree import DraftTree
from speculant.sizing.pausing import Pausing
from walks import SizedText, adaptive, curve, observe


def test_rounds_of_a_pause_may_be_counted_together() -> None:
    """Guards long pauses, whose rounds are counted in groups: as long, with the same counts and the same balance."""
    sizing, alone = adaptive(curve(0.5)), Pausing(left=50, pause=50, balance=-1.0)
    state = sizing.open(SizedText())
    state.pausing = Pausing(left=50, pause=50, balance=-1.0)
    rests = []
    for _ in range(50):
        assert sizing.nodes([state]) == [0]
        rests.append(state.rest)
        observe(sizing, [state], [DraftTree.empty()], [0], target=1.0)
        alone.skip()
    assert rests == list(range(50, 0, -1))
    assert state.pausing.balance == pytest.approx(alone.balance)
    assert (state.pausing.left, alone.left) == (0, 0)
    assert state.rounds == state.skipped == state.paused == state.length == state.pausing.rounds == alone.rounds == 50
    assert sizing.nodes([state]) != [0]


def test_a_text_that_ends_in_a_pause_is_counted_to_its_end() -> None:
    """Guards the counts, and what later requests inherit, where the last rounds of a pause were not counted yet."""
    sizing = adaptive(curve(0.5))
    state = sizing.open(SizedText(), start=SessionRequest(prompt=np.zeros(1, np.int32)))
    state.pausing.left, state.pausing.pause, state.pausing.balance = 50, 50, -9.0
    for _ in range(12):
        sizing.nodes([state])
        observe(sizing, [state], [DraftTree.empty()], [0], target=1.0)
    assert sizing.open(SizedText()).pausing.left == 38
    assert "in 100% of rounds drafting would have cost more" in sizing.reason(state)
    sizing.nodes([state])
    observe(sizing, [state], [DraftTree.empty()], [0], target=1.0)
    state.close()
    assert (state.length, list(state.lengths), state.rounds) == (13, [13], 13)


def test_a_balance_begins_afresh_within_a_group_of_rounds() -> None:
    """Guards renewals in long pauses, whose rounds are counted in groups: soon after the one in which they are due."""
    sizing = adaptive(curve(0.5))
    state = sizing.open(SizedText())
    state.pausing = Pausing(left=2000, pause=64, balance=-5.0, rounds=500, due=512)
    rounds = 0
    while not sizing.nodes([state])[0]:
        observe(sizing, [state], [DraftTree.empty()], [0], target=1.0)
        rounds += 1
    assert 12 < rounds < 12 + 16 + 8


def test_plain_texts_neither_pause_nor_are_inherited() -> None:
    """Guards batches with plain texts: these do not rest, and what they are is not what drafts gain."""
    sizing = adaptive(curve(0.5))
    losing = sizing.open(SizedText())
    losing.pausing.left, losing.pausing.pause, losing.pausing.balance = 50, 50, -9.0
    plain = sizing.open(SizedText(), plain=True)
    for _ in range(20):
        assert sizing.nodes([plain, losing]) == [0, 0]
        assert plain.rest == 0
        observe(sizing, [plain, losing], [DraftTree.empty()] * 2, [0, 0], target=1.0)
    assert plain.pausing == Pausing()
    assert sizing.open(SizedText()).pausing.left == 30
