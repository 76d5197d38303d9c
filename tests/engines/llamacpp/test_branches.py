"""Branches share cached rows as trees do."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from speculant.core.tree import DraftTree
from speculant.engines.llamacpp.branches import Branches, Share
from tree_forms import sequence_sets


def taking() -> Callable[[int], list[int]]:
    """Return what hands out 1, 2, ... as ids."""
    ids = itertools.count(1)
    return lambda count: [next(ids) for _ in range(count)]


def test_a_tree_in_one_pass_is_one_sequence_per_leaf() -> None:
    """Every row is in the sequences of the leaves at or below it, and positions follow depths."""
    tree = DraftTree.from_paths([[5, 6, 7], [5, 8], [9]])
    _, parents = tree.rows(3)
    grown = Branches(0, 10).grown(parents, taking())
    expected = sequence_sets(tree)
    found = [len(ids) for ids in grown.sequences]
    assert found == [len(ids) for ids in expected]
    assert grown.positions.tolist() == [10, *(10 + tree.depths()).tolist()]
    for row, ids in enumerate(grown.sequences):
        above = parents[row]
        assert above < 0 or set(ids) <= set(grown.sequences[above])
    assert grown.shares == [Share(0, 1, 10), Share(0, 2, 10)]


def test_rows_grown_by_levels_go_on_from_their_parents() -> None:
    """A first child keeps its parent's id; a later one gets an id that takes part in all rows above it."""
    take = taking()
    first = Branches(0, 4).grown(np.array([-1, 0, 0], np.int32), take)
    assert first.sequences == [[0, 1], [0], [1]]
    second = first.branches.grown(np.array([1, 1, 0], np.int32), take)
    assert second.sequences == [[0], [2], [3]]
    assert second.shares == [Share(0, 2, 6), Share(0, 3, 5)]
    assert second.positions.tolist() == [6, 6, 5]
    assert second.branches.taken == (1, 2, 3)


def test_parents_come_first() -> None:
    """Guards against rows that follow none."""
    branches = Branches(0, 4).grown(np.array([-1, 0, 0], np.int32), taking()).branches
    with pytest.raises(ValueError, match="must come before it"):
        branches.grown(np.array([4], np.int32), taking())
