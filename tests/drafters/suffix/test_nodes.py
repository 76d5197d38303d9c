"""The links between the nodes of a suffix tree."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from speculant.drafters.suffix.nodes import CHILD, COUNT, EDGE, NEXT, PARENT, PREVIOUS, ROOT, RUN, child_of
from speculant.drafters.suffix.tree import SuffixTree
from tables import ids


def siblings(tree: SuffixTree, node: int) -> list[int]:
    """Return a node's children in order."""
    found = []
    child = int(tree.tree.nodes[node, CHILD])
    while child != ROOT:
        found.append(child)
        child = int(tree.tree.nodes[child, NEXT])
    return found


@given(st.lists(st.integers(0, 5), max_size=120), st.integers(2, 6))
def test_siblings_are_linked_by_falling_count(text: list[int], depth: int) -> None:
    """Order, back links, runs of equals and the hash agree at every node, whatever splits and merges there were."""
    tree = SuffixTree(depth=depth)
    tree.extend(ids(text))
    nodes, firsts = tree.tree.nodes, tree.tree.firsts
    stack = [ROOT]
    while stack:
        node = stack.pop()
        children = siblings(tree, node)
        stack += children
        counts = [int(nodes[child, COUNT]) for child in children]
        assert counts == sorted(counts, reverse=True)
        for i, child in enumerate(children):
            assert nodes[child, PARENT] == node
            assert nodes[child, PREVIOUS] == children[i - 1], "the first has the last before it"
            assert child_of(tree.tree, node, nodes[child, EDGE] >> 7) == child
            assert firsts[nodes[child, RUN]] == children[counts.index(counts[i])]
        runs = {int(nodes[child, RUN]) for child in children}
        assert len(runs) == len(set(counts))


def test_the_latest_of_equals_comes_first() -> None:
    """Among continuations that are equally frequent, the last one is the best guess."""
    tree = SuffixTree(depth=2)
    for b in (1, 2, 3, 2, 1):
        tree.extend(ids([0, b]))
        tree.finish()
    after = child_of(tree.tree, ROOT, 0)
    order = [int(tree.tree.nodes[child, EDGE]) >> 7 for child in siblings(tree, after)]
    assert order == [1, 2, 3]
    assert np.array_equal([tree.tree.nodes[child, COUNT] for child in siblings(tree, after)], [2, 2, 1])
