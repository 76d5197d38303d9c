"""The counting suffix tree against counting by hand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant.drafters.suffix.history import END
from speculant.drafters.suffix.nodes import CHILD, COUNT, EDGE, NEXT, NODES, ROOT, START
from speculant.drafters.suffix.tree import SuffixTree
from tables import ids

Contexts = dict[tuple[int, ...], int]

documents = st.lists(st.lists(st.integers(0, 3), max_size=40), max_size=5)


def contexts(tree: SuffixTree) -> Contexts:
    """Return every context that the tree holds and its count."""
    found: Contexts = {}
    stack: list[tuple[int, tuple[int, ...]]] = [(ROOT, ())]
    while stack:
        node, context = stack.pop()
        nodes = tree.tree.nodes
        for i in range(int(nodes[node, EDGE]) & 127):
            context = (*context, int(tree.log[nodes[node, START] + i]))
            found[context] = int(nodes[node, COUNT])
        child = int(nodes[node, CHILD])
        while child != ROOT:
            stack.append((child, context))
            child = int(nodes[child, NEXT])
    return found


def by_hand(texts: list[list[int]], depth: int) -> Contexts:
    counts: Counter[tuple[int, ...]] = Counter()
    for text in texts:
        for start in range(len(text)):
            counts.update(tuple(text[start : start + n]) for n in range(1, min(depth, len(text) - start) + 1))
    return counts


def grow(texts: list[list[int]], depth: int, step: int) -> SuffixTree:
    tree = SuffixTree(depth=depth)
    for text in texts:
        for at in range(0, len(text), step):
            assert tree.extend(ids(text[at : at + step])) == len(text[at : at + step])
        tree.finish()
    return tree


@given(documents, st.integers(2, 9), st.integers(1, 7))
def test_counts_are_those_made_by_hand(texts: list[list[int]], depth: int, step: int) -> None:
    """Every context up to the depth has its count, however the text was split, in at most two nodes per token."""
    tree = grow(texts, depth, step)
    assert contexts(tree) == by_hand(texts, depth)
    assert tree.tree.used[NODES] <= 2 * tree.size + 1
    assert tree.text.tolist() == [token for text in texts if text for token in (*text, END)]


@given(documents, st.integers(2, 9))
def test_the_open_documents_suffixes_are_known(texts: list[list[int]], depth: int) -> None:
    """A session reads where its suffixes end instead of looking for them."""
    tree = grow(texts, depth, 50)
    text = [0, 1, 0, 1, 2, 0, 1]
    tree.extend(ids(text))
    counts = by_hand([*texts, text], depth)
    assert len(tree.ends) == min(depth, len(text))
    for k, node in enumerate(tree.ends):
        assert tree.tree.nodes[node, COUNT] == counts[tuple(text[len(text) - k - 1 :])]


def test_long_repetition_stays_small() -> None:
    """A loop of one token has one edge per level at the most, whatever its length."""
    tree = SuffixTree(depth=64)
    tree.extend(np.zeros(5000, np.int32))
    assert contexts(tree)[0, 0, 0] == 4998
    assert tree.tree.used[NODES] < 200


def test_the_limit_is_kept() -> None:
    """A full tree takes no more and returns where it stopped; its counts stay right."""
    random = np.random.default_rng(0)
    text = random.integers(0, 1000, 5000).astype(np.int32)
    tree = SuffixTree(depth=4, limit=100_000)
    taken = tree.extend(text)
    tree.finish()
    assert 500 < taken < 5000
    assert tree.nbytes <= 100_000
    assert contexts(tree) == by_hand([text[:taken].tolist()], 4)


def test_depths_that_do_not_fit() -> None:
    """An edge has seven bits for its length."""
    for depth in (1, 128):
        with pytest.raises(ValueError, match="2 to 127"):
            SuffixTree(depth=depth)
