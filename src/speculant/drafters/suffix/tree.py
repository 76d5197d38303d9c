"""A suffix tree of bounded depth that grows token by token and counts the occurrences of every context.

The structure behind SuffixDecoding (Oliaro, Jia, Campos, Qiao: "SuffixDecoding: Extreme Speculative Decoding for
Emerging AI Applications", NeurIPS 2025, arXiv 2411.04975, section 3): a node represents a context, its count is the
number of occurrences, and its count divided by the parent's is the relative frequency of this continuation.

Every suffix of a document, up to `depth` tokens long, is inserted while the document grows. A suffix always ends at a
node of its own; elsewhere, an edge holds consecutive tokens of equal count, so a tree of T tokens has at most 2 T
nodes. Edges point into the log of all documents.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from speculant.core.tree import Array, Int32
from speculant.drafters.suffix.history import END
from speculant.drafters.suffix.nodes import (
    CHILD,
    COUNT,
    EDGE,
    FREE_NODE,
    NEXT,
    NODE_BYTES,
    NODES,
    PARENT,
    PREVIOUS,
    ROOT,
    RUN,
    START,
    Tree,
    add_leaf,
    child_of,
    copy_slots,
    empty_slot,
    free_run,
    new_node,
    new_run,
    new_tree,
    raise_count,
    replace,
    slot_of,
)

MAX_DEPTH = 127  # an edge stores its first token and its length in 31 bits
_STEP = 256


@njit(cache=True, nogil=True)
def _step(tree: Tree, log: Array, node: int, at: int) -> int:
    """Extend a suffix that ends at `node` by log[at]; return the node where it now ends."""
    nodes, token = tree.nodes, log[at]
    if nodes[node, COUNT] == 1 and nodes[node, CHILD] == ROOT:  # usual case: its own leaf; the root's count is 0
        nodes[node, EDGE] += 1
        return node
    child = np.int64(child_of(tree, node, token))
    if child == ROOT:
        return add_leaf(tree, node, token, at)
    length = nodes[child, EDGE] & 127
    whole = node != ROOT and nodes[child, COUNT] + 1 == nodes[node, COUNT]  # every suffix here continues in this way
    if length == 1:
        raise_count(tree, child)
        if whole:
            empty_slot(tree, slot_of(tree, node, token))
            free_run(tree, nodes[child, RUN])
            length = nodes[node, EDGE] & 127
            replace(tree, node, child)
            nodes[child, EDGE] = nodes[node, EDGE] + 1
            nodes[child, START] -= length
            nodes[node, NEXT] = tree.used[FREE_NODE]
            tree.used[FREE_NODE] = node
        return child
    start = nodes[child, START] + 1
    if whole:
        empty_slot(tree, slot_of(tree, node, token))
        nodes[node, EDGE] += 1
        upper = node
    else:
        upper = new_node(tree, node, token, 1, start - 1, nodes[child, COUNT])
        replace(tree, child, upper)
        nodes[upper, CHILD] = child
        nodes[child, PARENT], nodes[child, PREVIOUS], nodes[child, NEXT] = upper, child, ROOT
        new_run(tree, child)
        raise_count(tree, upper)
    nodes[child, EDGE], nodes[child, START] = log[start] << 7 | length - 1, start
    tree.slots[slot_of(tree, upper, log[start])] = child
    return upper


@njit(cache=True, nogil=True)
def _append(tree: Tree, log: Array, begin: int, end: int, ends: Array, open_: int) -> int:
    """Append log[begin:end] to a document with `open_` open suffixes; return the new number of open suffixes.

    ends[k] is the node where the suffix of k + 1 tokens ends.
    """
    depth = len(ends)
    for at in range(begin, end):
        for k in range(min(open_, depth - 1), 0, -1):
            ends[k] = _step(tree, log, ends[k - 1], at)
        ends[0] = _step(tree, log, np.int64(ROOT), at)
        open_ = min(open_ + 1, depth)
    return open_


class SuffixTree:
    """A growing tree and its log. Not safe to share between threads without a lock.

    Attributes:
        tree: arrays of the tree.
        log: Int32[capacity], documents, each followed by END.
        size: number of tokens and ENDs in the log.
    """

    def __init__(self, *, depth: int, limit: int | None = None) -> None:
        """Create an empty tree of at most `limit` bytes; None for no limit.

        Raises:
            ValueError: the depth is below 2 or above 127.
        """
        if not 2 <= depth <= MAX_DEPTH:
            raise ValueError(f"a suffix tree must be 2 to {MAX_DEPTH} levels deep, not {depth}")
        self.depth, self.limit = depth, limit
        self.tree = new_tree(1)
        self.log = np.empty(0, np.int32)
        self.size = 0
        self._ends = np.zeros(depth, np.int64)
        self._open = 0

    @property
    def nbytes(self) -> int:
        """Size of all arrays in bytes."""
        return sum(array.nbytes for array in self.tree) + self.log.nbytes

    @property
    def text(self) -> Int32:
        """The stored documents, each followed by END."""
        return self.log[: self.size]

    @property
    def ends(self) -> Array:
        """Int64[min(T, depth)] for T tokens of the open document: the node where its suffix of k + 1 tokens ends."""
        return self._ends[: self._open]

    def fresh(self) -> SuffixTree:
        """Return an empty tree with all memory up to the limit allocated, in the same proportions as this one."""
        empty = SuffixTree(depth=self.depth, limit=self.limit)
        log, nodes = len(self.log), len(self.tree.nodes)
        scale = 1.0 if self.limit is None else max(1.0, (self.limit - 64) / (4 * log + nodes * NODE_BYTES))
        empty.log, empty.tree = np.empty(int(scale * log), np.int32), new_tree(int(scale * nodes))
        return empty

    def extend(self, tokens: Int32) -> int:
        """Extend the open document; return how many tokens were added, fewer if the limit is reached."""
        for at in range(0, len(tokens), _STEP):
            piece = tokens[at : at + _STEP]
            if not self._make_room(len(piece)):
                return at
            end = self.size + len(piece)
            self.log[self.size : end] = piece
            self._open = _append(self.tree, self.log, self.size, end, self._ends, self._open)
            self.size = end
        return len(tokens)

    def finish(self) -> None:
        """End the open document."""
        if self._open:
            self.log[self.size] = END
            self.size += 1
            self._open = 0

    def _make_room(self, tokens: int) -> bool:
        """Grow by a quarter if `tokens` more may not fit; return whether they fit now."""
        log, nodes = len(self.log), len(self.tree.nodes)
        maximum = 2 * (tokens + self.depth)  # a new or open suffix needs at most a leaf and a branching node
        if self.size + tokens + 1 > log:  # leave room for END
            log = log * 5 // 4 + tokens + 1
        if int(self.tree.used[NODES]) + maximum > nodes:
            nodes = nodes * 5 // 4 + maximum
        if (log, nodes) == (len(self.log), len(self.tree.nodes)):
            return True
        if self.limit is not None and 4 * log + nodes * NODE_BYTES + 64 > self.limit:
            return False
        if log > len(self.log):
            self.log = np.concatenate([self.text, np.empty(log - self.size, np.int32)])
        if nodes > len(self.tree.nodes):
            old, grown = self.tree, new_tree(nodes)
            grown.nodes[: len(old.nodes)], grown.firsts[: len(old.firsts)] = old.nodes, old.firsts
            grown.used[:] = old.used
            copy_slots(old, grown)
            self.tree = grown
        return True
