"""What nodes turn out to be worth: of late, by their weight and their depth, and first what the drafter says."""

from __future__ import annotations

import numpy as np
import pytest

from speculant.core.tree import DraftTree
from speculant.sizing.acceptance import Values
from trees import chain


def test_values_are_those_of_late() -> None:
    """A request that changes its nature is followed, and the next one begins with what this one taught."""
    shared = Values()
    values = Values(shared)
    tree = chain(0.5, 0.5, 0.5, 0.5)
    for path in [[0, 1, 2, 3]] * 300:
        values.learn(tree, path)
    assert values.of(tree)[0] == pytest.approx(1, abs=0.02)
    for _ in range(300):
        values.learn(tree, [])
    assert values.of(tree)[0] < 0.1
    assert Values(values).of(tree).tolist() == values.of(tree).tolist()
    assert shared.of(tree)[0] == 0.5


def test_what_was_met_decides_and_the_word_where_nothing_was() -> None:
    """Weights that were never met are believed; no node is ever worth more than 1."""
    values = Values()
    for _ in range(200):
        values.learn(chain(0.5), [0])
    assert values.of(chain(0.5, 0.1)) == pytest.approx([1, 0.1], abs=0.03)


def test_depth_counts() -> None:
    """Deep nodes that never come true lose their worth though shallow ones of the same weight keep theirs."""
    values = Values()
    for _ in range(300):
        values.learn(chain(0.5, 0.5, 0.5, 0.5), [0, 1])
    assert values.of(chain(0.5, 0.5, 0.5)) == pytest.approx([1, 1, 0], abs=0.15)


def test_rate() -> None:
    """The rate is of late, never below plain decoding's, and a request begins with little of that of others."""
    values = Values()
    assert values.rate == 1
    for _ in range(300):
        values.learn_rate(3, 1.5)
    assert values.rate == pytest.approx(2)
    after = Values(values)
    for _ in range(100):
        after.learn_rate(1, 2.0)
    assert after.rate == 1
    assert values.rate == pytest.approx(2)


def test_branches_have_the_depth_of_their_parents() -> None:
    """Guards the depth of siblings: it is the path's length, not the place in the draft."""
    values = Values()
    tree = DraftTree(np.arange(3, dtype=np.int32), np.full(3, -1, np.int32), np.full(3, 0.5, np.float32))
    for _ in range(300):
        values.learn(tree, [2])
    worth = values.of(tree)
    assert worth[0] == worth[1] == worth[2] == pytest.approx(1 / 3, abs=0.02)
