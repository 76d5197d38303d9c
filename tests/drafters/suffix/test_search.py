"""Drafting from a suffix tree, against the definition."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from speculant.core.tree import DraftTree
from speculant.drafters.suffix.nodes import EDGE, ROOT
from speculant.drafters.suffix.search import expand, find, find_suffixes, speculate
from speculant.drafters.suffix.tree import SuffixTree
from tables import ids

texts = st.lists(st.integers(0, 3), min_size=2, max_size=60)


def tree_of(*documents: list[int], depth: int = 8) -> SuffixTree:
    tree = SuffixTree(depth=depth)
    for document in documents:
        tree.extend(ids(document))
        tree.finish()
    return tree


def draft(tree: SuffixTree, context: list[int], limit: int, *, deepest: int = 8, unseen: int = 0) -> DraftTree:
    tokens, parents, joints = np.empty(limit, np.int32), np.empty(limit, np.int32), np.empty(limit)
    node, used = find(tree.tree, tree.log, ids(context))
    n, score = expand(tree.tree, tree.log, node, used, limit, deepest, unseen, 0.0, tokens, parents, joints)
    assert score == float(np.sum(joints[:n])) or abs(score - np.sum(joints[:n])) < 1e-9
    return DraftTree(tokens[:n], parents[:n], joints[:n].astype(np.float32))


def paths(tree: DraftTree) -> dict[tuple[int, ...], float]:
    return {tuple(tree.tokens[tree.path(i)].tolist()): float(tree.weights[i]) for i in range(len(tree))}


def times(text: list[int], pattern: list[int]) -> int:
    return sum(text[i : i + len(pattern)] == pattern for i in range(len(text) - len(pattern) + 1))


@given(texts, st.integers(1, 3), st.integers(1, 30), st.integers(0, 1))
def test_estimates_are_shares_best_first(text: list[int], length: int, limit: int, unseen: int) -> None:
    """A node's estimate is how often its path followed the context, out of the times that the context was seen."""
    context = text[:length]
    tree = tree_of(text)
    drafted = draft(tree, context, limit, unseen=unseen)
    found, seen = paths(drafted), times(text, context) + unseen
    assert len(found) == len(drafted)
    for path, weight in found.items():
        assert abs(weight - times(text, [*context, *path]) / seen) < 1e-6
    weights = drafted.weights.tolist()
    assert weights == sorted(weights, reverse=True)
    every = paths(draft(tree, context, 500, unseen=unseen))
    assert np.allclose(weights, sorted(every.values(), reverse=True)[:limit]), "no heavier node was left out"


def test_equals_go_breadth_first() -> None:
    """Of two equally likely continuations both are begun before either is gone on with."""
    drafted = draft(tree_of([0, 1, 2, 3], [0, 4, 5, 6]), [0], 4)
    assert drafted.tokens.tolist() == [4, 1, 5, 2]
    assert drafted.parents.tolist() == [-1, -1, 0, 1]


def test_levels_are_bounded() -> None:
    """A draft is no deeper than asked for, however long the continuation is known."""
    assert draft(tree_of([0, 1, 2, 3, 4]), [0], 9, deepest=2).tokens.tolist() == [1, 2]


@given(texts, st.lists(st.integers(0, 4), min_size=1, max_size=8))
def test_contexts_are_found(text: list[int], context: list[int]) -> None:
    """Exactly the suffixes that occur are found, in the middle of an edge too."""
    tree = tree_of(text)
    places = find_suffixes(tree.tree, tree.log, ids(context))
    lengths = [n for n in range(1, len(context) + 1) if times(text, context[len(context) - n :])]
    assert lengths == list(range(1, len(places) + 1))
    assert (find(tree.tree, tree.log, ids(context))[0] != ROOT) == (times(text, context) > 0)


@given(texts, st.integers(1, 20), st.sampled_from([0.5, 1.0, 4.0]))
def test_the_best_scoring_match_is_kept(text: list[int], limit: int, factor: float) -> None:
    """Leaving out matches that cannot win changes nothing: the score is that of trying every match."""
    depth = 8
    tree = SuffixTree(depth=depth)
    tree.extend(ids(text))
    ends = tree.ends[: depth - 1]
    places = np.stack([ends, tree.tree.nodes[ends, EDGE] & 127], axis=1)
    tokens, parents, joints, score = speculate(tree.tree, tree.log, places, 0, depth, depth, limit, factor, 0.0)
    scores = [0.0]
    for k in range(len(places)):
        maximum = min(limit, int(factor * (k + 1) + 1e-6))
        if maximum:
            scores.append(float(draft(tree, text[len(text) - k - 1 :], maximum, deepest=depth).weights.sum()))
    assert abs(score - max(scores)) < 1e-5
    assert abs(joints.sum() - score) < 1e-9
    DraftTree(tokens, parents, joints.astype(np.float32))


def test_small_estimates_are_left_out() -> None:
    """A node must be likelier than the least asked for."""
    tree = tree_of([0, 1], [0, 1], [0, 1], [0, 2])
    places = find_suffixes(tree.tree, tree.log, ids([0]))
    tokens, *_ = speculate(tree.tree, tree.log, places, 0, 8, 8, 8, 8.0, 0.25)
    assert tokens.tolist() == [1]
