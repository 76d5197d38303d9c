"""The draft tree: every form an engine wants agrees with a slow and obvious reading of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant.core.tree import ROOT, DraftTree, Proposal, Queries
from trees import ancestry, beside, drafts, leaves, make_tree, paths_of


def sampled(tree: DraftTree) -> DraftTree:
    """Return the tree as if its tokens had been drawn; row i of q names node i."""
    q = np.repeat(np.arange(len(tree), dtype=np.float32)[:, None], 4, axis=1)
    return DraftTree(tree.tokens, tree.parents, tree.weights, Proposal(q, drawn="distinct"))


@pytest.mark.parametrize(
    ("tokens", "parents", "weights"),
    [
        ([1, 2], [-1], [1.0, 1.0]),
        ([1, 2], [-1, 0], [1.0]),
        ([1, 2], [-1, 1], [1.0, 1.0]),
        ([1, 2], [1, -1], [1.0, 1.0]),
        ([1], [-2], [1.0]),
        ([1], [-1], [1.1]),
        ([1, 2], [-1, 0], [0.5, 0.6]),
        ([1], [-1], [float("nan")]),
    ],
)
def test_refuses_what_is_no_tree(tokens: list[int], parents: list[int], weights: list[float]) -> None:
    """Arrays that disagree, children before parents and weights above the parent's never become a tree."""
    with pytest.raises(ValueError, match=r"differ|parent"):
        DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32), np.array(weights, np.float32))


@given(drafts())
def test_depths_paths_and_children(tree: DraftTree) -> None:
    """Depths, paths and children agree with the plain set of ancestors."""
    above = ancestry(tree)
    assert tree.depths().tolist() == [len(nodes) for nodes in above]
    assert [tree.path(node).tolist() for node in range(len(tree))] == [sorted(nodes) for nodes in above]
    for node in range(ROOT, len(tree)):
        assert tree.children(node) == [i for i, parent in enumerate(tree.parents.tolist()) if parent == node]


@given(drafts())
def test_every_prefix_is_a_tree(tree: DraftTree) -> None:
    """A budget is a slice: the first n nodes are a tree with the same first paths."""
    named = list(paths_of(tree).items())
    for n in range(len(tree) + 2):
        assert list(paths_of(tree.head(n)).items()) == named[:n]


@given(drafts())
def test_best_chain(tree: DraftTree) -> None:
    """The best chain has the largest sum of weights of all paths."""
    chain = tree.best_chain().tolist()
    if not len(tree):
        assert chain == []
        return
    assert chain == tree.path(chain[-1]).tolist()
    best = max(float(tree.weights[tree.path(leaf)].sum()) for leaf in leaves(tree))
    assert float(tree.weights[chain].sum()) == best
    line = tree.within(depth=len(tree), trees=False)
    assert line.parents.tolist() == list(range(-1, len(chain) - 1))
    assert line.tokens.tolist() == tree.tokens[chain].tolist()


@given(drafts(), st.integers(0, 6))
def test_within(tree: DraftTree, depth: int) -> None:
    """Cutting by depth keeps all shallow nodes, in order; without branches only those of the best chain."""
    expected = [(path, weight) for path, weight in paths_of(tree).items() if len(path) <= depth]
    assert list(paths_of(tree.within(depth=depth)).items()) == expected
    line = tree.within(depth=depth, trees=False)
    assert line.tokens.tolist() == tree.tokens[tree.best_chain()[:depth]].tolist()
    assert line.parents.tolist() == list(range(-1, len(line) - 1))


@given(drafts())
def test_depths_are_computed_once(tree: DraftTree) -> None:
    """Guards the cache: it holds the tree's own depths, and no other tree's after cutting."""
    assert tree.depths() is tree.depths()
    for part in (tree.head(len(tree) // 2), tree.within(depth=2)):
        assert part.depths().tolist() == [len(nodes) for nodes in ancestry(part)]


@given(drafts())
def test_trusted_trees_equal_checked_ones(tree: DraftTree) -> None:
    """Guards the way around the checks, which sets every field itself."""
    trusted = DraftTree.trusted(tree.tokens, tree.parents, tree.weights)
    assert trusted.proposal is None
    assert trusted.depths().tolist() == tree.depths().tolist()
    assert trusted.depths().tolist() == tree.depths().tolist()


@given(st.lists(drafts(), max_size=4), st.integers(0, 20))
def test_merge(trees: list[DraftTree], maximum: int) -> None:
    """The union holds each path once with its largest weight, and the heaviest of them are kept in order."""
    union: dict[tuple[int, ...], float] = {}
    for tree in trees:
        for path, weight in paths_of(tree).items():
            union[path] = max(weight, union.get(path, 0.0))
    merged = DraftTree.merge(trees, maximum)
    kept = paths_of(merged)
    assert len(kept) == len(merged) == min(maximum, len(union))
    assert all(union[path] == weight for path, weight in kept.items())
    weights = merged.weights.tolist()
    assert weights == sorted(union.values(), reverse=True)[: len(kept)]


def test_sampled_drafts_are_not_cut_by_value() -> None:
    """Dropping or joining sampled nodes because of what was drawn would bias the output, so it is refused."""
    tree = sampled(make_tree([1, 2, 3], [-1, -1, 0]))
    assert tree.head(3) is tree
    with pytest.raises(ValueError, match="sampled"):
        tree.head(2)
    with pytest.raises(ValueError, match="sampled"):
        tree.within(depth=1)
    with pytest.raises(ValueError, match="sampled"):
        DraftTree.merge([make_tree([1], [-1]), tree], 5)
    assert tree.within(depth=3) is tree


def test_chosen_nodes_of_a_sampled_draft_may_be_dropped() -> None:
    """Guards mixed drafts: chosen nodes at the end may go, with their marks; a sampled one among them may not."""
    plain = make_tree([1, 2, 3, 4], [-1, 0, 0, 1], [0.9, 0.8, 0.5, 0.4])
    chosen = np.array([False, True, False, True])
    tree = DraftTree(plain.tokens, plain.parents, plain.weights, Proposal(np.ones((4, 5)), chosen=chosen))
    head = tree.head(3)
    assert head.tokens.tolist() == [1, 2, 3]
    assert head.proposal is not None
    assert head.proposal.chosen is not None
    assert head.proposal.chosen.tolist() == [False, True, False]
    with pytest.raises(ValueError, match="sampled"):
        tree.head(2)


@given(st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=4), st.integers(0, 4)), max_size=6))
def test_from_paths(given_paths: list[tuple[list[int], int]]) -> None:
    """Paths with a common beginning share its nodes, which weigh what the heaviest of them does."""
    expected: dict[tuple[int, ...], float] = {}
    for path, quarter in given_paths:
        for depth in range(1, len(path) + 1):
            name = tuple(path[:depth])
            expected[name] = max(expected.get(name, 0.0), quarter / 4)
    paths = [path for path, _ in given_paths]
    tree = DraftTree.from_paths(paths, [quarter / 4 for _, quarter in given_paths])
    assert list(paths_of(tree).items()) == list(expected.items())
    assert DraftTree.from_paths(paths).weights.tolist() == [1.0] * len(expected)


def test_from_paths_wants_a_weight_for_each_path() -> None:
    """Missing weights are an error, not a shorter draft."""
    with pytest.raises(ValueError, match="shorter"):
        DraftTree.from_paths([[1], [2]], [0.5])


def test_the_empty_draft() -> None:
    """No draft is a draft: one row, the root's, and plain decoding."""
    tree = DraftTree.empty()
    assert len(tree) == 0
    assert len(tree.within(depth=3, trees=False)) == len(tree.within(depth=3)) == len(DraftTree.merge([], 5)) == 0
    assert (tree.tokens.dtype, tree.parents.dtype, tree.weights.dtype) == (np.int32, np.int32, np.float32)


@given(drafts(), drafts())
def test_rows_of_a_pass(tree: DraftTree, other: DraftTree) -> None:
    """Rows are the root, the nodes, and the queries, whose parents are the root or each other."""
    both = beside(tree, other)
    tokens, parents = both.rows(9)
    assert tokens.tolist() == [9, *tree.tokens.tolist(), *other.tokens.tolist()]
    below = [0 if parent == ROOT else len(tree) + 1 + parent for parent in other.parents.tolist()]
    assert parents.tolist() == [ROOT, *(tree.parents + 1).tolist(), *below]
    assert (len(both), both.depths().tolist()) == (len(tree), tree.depths().tolist())
    assert both.queries.depths().tolist() == other.depths().tolist()
    assert both.best_chain().tolist() == tree.best_chain().tolist()


@given(drafts(), drafts(), st.integers(0, 4))
def test_dropping_nodes_leaves_queries(tree: DraftTree, other: DraftTree, left: int) -> None:
    """Guards the window of a draft that sizing trims or a budget cuts."""
    both = beside(tree, other)
    for kept in (both.head(left), both.within(depth=left), both.within(depth=left, trees=False)):
        assert kept.queries is both.queries


def test_what_are_no_queries() -> None:
    """Arrays that disagree and children before parents are refused; so is a union, in which rows would be lost."""
    with pytest.raises(ValueError, match="differ"):
        Queries(np.zeros(2, np.int32), np.full(1, ROOT, np.int32))
    for parents in ([0], [-2], [-1, 1]):
        with pytest.raises(ValueError, match="parent"):
            Queries(np.zeros(len(parents), np.int32), np.array(parents, np.int32))
    tree = beside(make_tree([1], [-1]), make_tree([2], [-1]))
    with pytest.raises(ValueError, match="queries"):
        DraftTree.merge([tree, make_tree([3], [-1])], 4)
    assert not len(DraftTree.empty().queries)
