"""Nodes of a suffix tree: hashed by parent and first token, and linked to their siblings in order of count.

Among siblings of equal count, the one whose count was raised last comes first. Each run of equal counts stores its
first node, so that raising a count by one moves a node past its equals in constant time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from speculant.core.tree import Array
from speculant.memory.pages import zeros

PARENT, EDGE, START, COUNT, CHILD, NEXT, PREVIOUS, RUN = range(8)
ROOT = 0  # means "none" where a child or sibling is expected
NODES, FREE_NODE, _RUNS, _FREE_RUN = range(4)

_LOAD = 0.75
NODE_BYTES = 36 + 4 / _LOAD


class Tree(NamedTuple):
    """The arrays of a tree.

    Attributes:
        nodes: Int32[C, 8], parent, edge (first token times 128 plus length), the edge's start in the log, count,
            first child, next sibling, previous sibling (for the first: the last sibling), run of equal counts.
        firsts: Int32[C], the first node of each run; free runs are linked.
        slots: Int32[S], indices of the nodes, hashed by parent and first token.
        used: Int64[4], nodes allocated, first free node, runs allocated, first free run.
    """

    nodes: Array
    firsts: Array
    slots: Array
    used: Array


@njit(cache=True, nogil=True, inline="always")
def _home(parent: int, token: int, size: int) -> int:
    key = (np.uint64(parent) << np.uint64(32)) | np.uint64(token)
    mixed = (key ^ (key >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(((mixed >> np.uint64(32)) * np.uint64(size)) >> np.uint64(32))


@njit(cache=True, nogil=True, inline="always")
def slot_of(tree: Tree, parent: int, token: int) -> int:
    """Return the slot of the child whose edge starts with `token`, or the empty slot to insert it at."""
    size = len(tree.slots)
    slot = _home(parent, token, size)
    while True:
        node = tree.slots[slot]
        if node == ROOT or (tree.nodes[node, PARENT] == parent and tree.nodes[node, EDGE] >> 7 == token):
            return slot
        slot = slot + 1 if slot + 1 < size else 0


@njit(cache=True, nogil=True, inline="always")
def child_of(tree: Tree, parent: int, token: int) -> int:
    """Return the child of a node whose edge starts with `token`, or ROOT."""
    return tree.slots[slot_of(tree, parent, token)]


@njit(cache=True, nogil=True)
def empty_slot(tree: Tree, slot: int) -> None:
    """Empty a slot and close the gap in its probe sequence."""
    size = len(tree.slots)
    gap, slot = slot, slot + 1 if slot + 1 < size else 0
    while tree.slots[slot] != ROOT:
        node = tree.slots[slot]
        home = _home(tree.nodes[node, PARENT], tree.nodes[node, EDGE] >> 7, size)
        if (slot - home + size) % size >= (slot - gap + size) % size:
            tree.slots[gap] = node
            gap = slot
        slot = slot + 1 if slot + 1 < size else 0
    tree.slots[gap] = ROOT


@njit(cache=True, nogil=True, inline="always")
def new_run(tree: Tree, node: int) -> None:
    """Start a run of equal counts with a node."""
    run = tree.used[_FREE_RUN]
    if run != 0:
        tree.used[_FREE_RUN] = tree.firsts[run]
    else:
        run = tree.used[_RUNS]
        tree.used[_RUNS] += 1
    tree.firsts[run] = node
    tree.nodes[node, RUN] = run


@njit(cache=True, nogil=True, inline="always")
def free_run(tree: Tree, run: int) -> None:
    """Return a run without nodes to the free list."""
    tree.firsts[run] = tree.used[_FREE_RUN]
    tree.used[_FREE_RUN] = run


@njit(cache=True, nogil=True, inline="always")
def new_node(tree: Tree, parent: int, token: int, length: int, start: int, count: int) -> int:
    """Return a new node, not yet linked."""
    node = tree.used[FREE_NODE]
    if node != 0:
        tree.used[FREE_NODE] = tree.nodes[node, NEXT]
    else:
        node = tree.used[NODES]
        tree.used[NODES] += 1
    fields = tree.nodes[node]
    fields[PARENT], fields[EDGE], fields[START], fields[COUNT] = parent, token << 7 | length, start, count
    fields[CHILD], fields[NEXT], fields[PREVIOUS], fields[RUN] = ROOT, ROOT, ROOT, 0
    return node


@njit(cache=True, nogil=True, inline="always")
def insert_before(tree: Tree, node: int, place: int) -> None:
    """Link a node before one of its siblings."""
    nodes = tree.nodes
    parent, before = nodes[place, PARENT], nodes[place, PREVIOUS]
    nodes[node, NEXT], nodes[node, PREVIOUS], nodes[place, PREVIOUS] = place, before, node
    if nodes[parent, CHILD] == place:
        nodes[parent, CHILD] = node
    else:
        nodes[before, NEXT] = node


@njit(cache=True, nogil=True, inline="always")
def unlink(tree: Tree, node: int) -> None:
    """Remove a node from the list of its siblings; it must not be the first."""
    nodes = tree.nodes
    before, after = nodes[node, PREVIOUS], nodes[node, NEXT]
    nodes[before, NEXT] = after
    nodes[nodes[nodes[node, PARENT], CHILD] if after == ROOT else after, PREVIOUS] = before


@njit(cache=True, nogil=True, inline="always")
def add_leaf(tree: Tree, parent: int, token: int, start: int) -> int:
    """Add a child with a count of 1 to a node, before siblings of equal count."""
    nodes = tree.nodes
    leaf = new_node(tree, parent, token, 1, start, 1)
    tree.slots[slot_of(tree, parent, token)] = leaf
    first = nodes[parent, CHILD]
    if first == ROOT:
        nodes[parent, CHILD] = leaf
        nodes[leaf, PREVIOUS] = leaf
        new_run(tree, leaf)
        return leaf
    last = nodes[first, PREVIOUS]
    if nodes[last, COUNT] == 1:
        run = nodes[last, RUN]
        insert_before(tree, leaf, tree.firsts[run])
        tree.firsts[run], nodes[leaf, RUN] = leaf, run
    else:
        nodes[last, NEXT], nodes[leaf, PREVIOUS], nodes[first, PREVIOUS] = leaf, last, leaf
        new_run(tree, leaf)
    return leaf


@njit(cache=True, nogil=True)
def raise_count(tree: Tree, node: int) -> None:
    """Add one to a node's count and move it to its new position among its siblings."""
    nodes = tree.nodes
    run = nodes[node, RUN]
    first, after = tree.firsts[run], nodes[node, NEXT]
    if first != node:
        unlink(tree, node)
        insert_before(tree, node, first)
    elif after != ROOT and nodes[after, RUN] == run:
        tree.firsts[run] = after
    else:
        free_run(tree, run)
    nodes[node, COUNT] += 1
    before = nodes[node, PREVIOUS]
    if nodes[nodes[node, PARENT], CHILD] != node and nodes[before, COUNT] == nodes[node, COUNT]:
        run = nodes[before, RUN]
        first = tree.firsts[run]
        unlink(tree, node)
        insert_before(tree, node, first)
        tree.firsts[run], nodes[node, RUN] = node, run
    else:
        new_run(tree, node)


@njit(cache=True, nogil=True)
def replace(tree: Tree, node: int, other: int) -> None:
    """Put `other` in a node's place: among siblings, in its run and in its slot. Their first tokens must be equal."""
    nodes = tree.nodes
    parent, before, after, run = nodes[node, PARENT], nodes[node, PREVIOUS], nodes[node, NEXT], nodes[node, RUN]
    tree.slots[slot_of(tree, parent, nodes[node, EDGE] >> 7)] = other
    nodes[other, PARENT], nodes[other, NEXT], nodes[other, RUN] = parent, after, run
    nodes[other, PREVIOUS] = other if before == node else before
    if nodes[parent, CHILD] == node:
        nodes[parent, CHILD] = other
    else:
        nodes[before, NEXT] = other
    nodes[nodes[parent, CHILD] if after == ROOT else after, PREVIOUS] = other
    if tree.firsts[run] == node:
        tree.firsts[run] = other


@njit(cache=True, nogil=True)
def copy_slots(old: Tree, new: Tree) -> None:
    """Insert the nodes of a tree into the slots of another, which contains the same nodes."""
    for node in old.slots:
        if node != ROOT:
            new.slots[slot_of(new, old.nodes[node, PARENT], old.nodes[node, EDGE] >> 7)] = node


def new_tree(nodes: int) -> Tree:
    """Return a tree that contains only the root, with room for `nodes` nodes including the root."""
    return Tree(
        zeros((nodes, 8), np.int32),
        zeros(nodes, np.int32),
        zeros(int(nodes / _LOAD) + 1, np.int32),
        np.array([1, 0, 1, 0], np.int64),
    )
