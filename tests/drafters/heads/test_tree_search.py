"""The search of static trees finds the best one."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from speculant.core.errors import UsageError
from speculant.drafters.heads.published_trees import PUBLISHED_TREES, find_published_tree
from speculant.drafters.heads.tree_search import rank_accuracies, search_tree
from trees import expected_length


@st.composite
def accuracies(draw: st.DrawFn) -> list[list[float]]:
    """Draw accuracies of up to three depths and ranks, in no order."""
    return draw(st.lists(st.lists(st.floats(0.01, 0.33), min_size=1, max_size=3), min_size=1, max_size=3))


@given(accuracies(), st.integers(1, 12))
def test_no_tree_of_as_many_nodes_gains_more(rows: list[list[float]], nodes: int) -> None:
    """Guards optimality, by every path there is, and that each node has its parent before it."""
    every = [
        path
        for depth in range(1, len(rows) + 1)
        for path in itertools.product(*(range(len(row)) for row in rows[:depth]))
    ]
    found = search_tree(rows, nodes)
    values = sorted((math.prod(rows[d][r] for d, r in enumerate(path)) for path in every), reverse=True)
    assert len(found) == min(nodes, len(every)) == len(set(found))
    assert math.isclose(expected_length(rows, found), 1 + sum(values[:nodes]))
    for place, path in enumerate(found):
        assert len(path) == 1 or path[:-1] in found[:place]


def test_ranks_that_are_out_of_order_are_found() -> None:
    """Guards against the neighbour search, which never reaches a rank behind a worse one."""
    assert search_tree([[0.1, 0.2, 0.6]], 2) == ((2,), (1,))
    assert search_tree([[0.5, 0.0, 0.3], [0.9]], 4) == ((0,), (0, 0), (2,), (2, 0))


def test_bad_accuracies_are_refused() -> None:
    """Guards the messages: no probability, more than one together, no node."""
    with pytest.raises(UsageError, match="depth 2"):
        search_tree([[0.5], [1.5]], 3)
    with pytest.raises(UsageError, match="sum to at most 1"):
        search_tree([[0.8, 0.7]], 3)
    with pytest.raises(UsageError, match="at least 1 node"):
        search_tree([[0.5]], 0)


def test_rank_accuracies_count_hits() -> None:
    """Guards ranks, tokens that the head lacks, and vocabularies of fewer tokens than ranks."""
    logits = torch.tensor([[3.0, 2.0, 1.0], [1.0, 3.0, 2.0], [1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    found = rank_accuracies(logits, torch.tensor([0, 2, -1, 1]), ranks=4)
    assert found.tolist() == [0.25, 0.5, 0.0, 0.0]


@pytest.mark.parametrize("name", PUBLISHED_TREES)
def test_published_trees_are_trees_of_63_nodes(name: str) -> None:
    """Guards the copied figures: each node once, below its parent, ranks below 10, depths of at most 4."""
    paths = find_published_tree(name)
    assert len(paths) == len(set(paths)) == 63
    assert all(len(path) == 1 or path[:-1] in paths[:place] for place, path in enumerate(paths))
    assert max(map(len, paths)) <= 4
    assert max(map(max, paths)) == 9


def test_unknown_tree() -> None:
    """Guards the message, which names those there are."""
    with pytest.raises(UsageError, match="vicuna-7b-stage2"):
        find_published_tree("large")
