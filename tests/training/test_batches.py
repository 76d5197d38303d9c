"""Groups of texts and their anchors."""

from __future__ import annotations

import itertools

import numpy as np

from speculant.training.batches import TRAINING, Groups, anchor_range, split, usable
from speculant.training.texts import from_parts
from trainings import tiny_texts


def test_every_epoch_visits_every_group_once_in_its_own_order() -> None:
    """Guards against texts that are left out, and against orders that repeat."""
    groups = Groups(tiny_texts(30), size=4, anchors=5, depth=1, seed=3)
    epochs = [[groups.at(epoch * len(groups) + place) for place in range(len(groups))] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(8)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert sorted(np.concatenate([groups[index] for index in range(8)])) == list(range(30))


def test_a_batch_is_a_function_of_its_number() -> None:
    """Guards resuming: whatever was asked before, the n-th batch is the same."""
    one, other = (Groups(tiny_texts(30), size=4, anchors=5, depth=1, seed=3) for _ in range(2))
    later = [one.at(number) for number in range(40)]
    assert [other.at(number) for number in (39, 2, 17)] == [later[39], later[2], later[17]]
    np.testing.assert_array_equal(one.anchors(3, TRAINING, 17), other.anchors(3, TRAINING, 17))
    assert not np.array_equal(one.anchors(3, TRAINING, 17), one.anchors(3, TRAINING, 18))


def test_groups_hold_texts_of_like_length() -> None:
    """Guards against padding."""
    texts = tiny_texts(40)
    groups = Groups(texts, size=5, anchors=5, depth=1, seed=0)
    ends = [(texts.lengths[groups[i]].min(), texts.lengths[groups[i]].max()) for i in range(len(groups))]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ends))


def test_anchors_leave_room_below_and_stay_behind_the_prompt() -> None:
    """Guards the contract: depth + 2 tokens follow each anchor, and the target wrote its root."""
    texts, depth = tiny_texts(20, prompts=4), 3
    groups = Groups(texts, size=4, anchors=6, depth=depth, seed=0)
    for index in range(len(groups)):
        for row, place in groups.anchors(index, 0):
            length = texts.lengths[groups[index][row]]
            assert 3 <= place <= length - 1 - (depth + 2)
            assert len(np.unique(groups.anchors(index, 0), axis=0)) == len(groups.anchors(index, 0))


def test_usable_texts_have_room_for_one_anchor_at_least() -> None:
    """Guards the boundary: a text of depth + 3 tokens has one anchor, a shorter one none."""
    texts = from_parts([np.arange(n, dtype=np.int32) for n in (5, 6, 7)], [0, 0, 4])
    assert usable(texts, 3).tolist() == [1]
    assert anchor_range(texts, 3, 1) == (0, 1)


def test_held_out_texts_are_not_trained_on() -> None:
    """Guards the split."""
    training, held_out = split(20, 5, seed=0)
    assert len(held_out) == 5
    assert sorted([*training, *held_out]) == list(range(20))
