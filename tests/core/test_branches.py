"""Branches: their number, and drafts cut to what there is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from speculant.core.branches import branches_of, fit_branches
from speculant.core.tree import ROOT, DraftTree, Proposal, Queries
from trees import leaves, paths_of

WIDE = DraftTree.from_paths([[5, 6], [5, 7], [8], [9, 1]], [0.9, 0.5, 0.6, 0.2])
WINDOW = Queries(np.array([1, 2, 3], np.int32), np.array([-1, -1, 0], np.int32))


def test_branches_are_leaves_beyond_the_first() -> None:
    """Guards the count that llama.cpp's sequences are taken by: nodes and queries below the same root."""
    assert branches_of(DraftTree.empty()) == 0
    assert branches_of(DraftTree.from_paths([[1, 2, 3]])) == 0
    assert branches_of(WIDE) == len(leaves(WIDE)) - 1 == 3
    assert branches_of(replace(WIDE, queries=WINDOW)) == 5


def test_the_lightest_branches_are_dropped() -> None:
    """Guards what is left of drafts: the heaviest nodes of all drafts together, each with its ancestors."""
    assert fit_branches([WIDE], 3)[0] is WIDE
    assert set(paths_of(fit_branches([WIDE], 1)[0])) == {(5,), (5, 6), (8,)}
    assert set(paths_of(fit_branches([WIDE], 0)[0])) == {(5,), (5, 6)}
    other = DraftTree.from_paths([[1], [2]], [0.7, 0.55])
    first, second = fit_branches([WIDE, other], 2)
    assert set(paths_of(first)) == {(5,), (5, 6), (8,)}
    assert set(paths_of(second)) == {(1,), (2,)}


def test_queries_and_sampled_drafts_stay() -> None:
    """Guards exactness: a sampled node cannot be dropped by its value, and a window is asked whole or not at all."""
    asked, two = replace(WIDE, queries=WINDOW), np.array([ROOT, ROOT], np.int32)
    [cut] = fit_branches([asked], 2)
    assert cut.queries is WINDOW
    assert set(paths_of(cut)) == {(5,), (5, 6)}
    sampled = DraftTree(two + 5, two, np.ones(2, np.float32), Proposal(np.ones((1, 9)) / 9))
    kept, cut = fit_branches([sampled, WIDE], 1)
    assert kept is sampled
    assert set(paths_of(cut)) == {(5,), (5, 6)}
