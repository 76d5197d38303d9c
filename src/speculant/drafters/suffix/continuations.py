"""Drafting from continuations of a context: the most frequent nodes of their trie.

He, Zhong, Cai, Lee, He: "REST: Retrieval-Based Speculative Decoding", NAACL 2024, arXiv 2311.08252, section 3.2. A
node's weight is the fraction of continuations that start with the tokens on its path. A node is never more frequent
than its parent, so only the drafted part of the trie is built, most frequent node first; ties go to the shallower node,
then to the smaller token.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from speculant.core.tree import Array
from speculant.drafters.suffix.history import END


@njit(cache=True, nogil=True)
def most_frequent(rows: Array, limit: int) -> tuple[Array, Array, Array]:
    """Return tokens Int32[N], parents Int32[N] and weights Float32[N] of the most frequent nodes, N <= limit.

    Args:
        rows: Int32[R, C], continuations, padded with END.
        limit: maximum number of nodes.
    """
    tokens, parents = np.empty(limit, np.int32), np.empty(limit, np.int32)
    shares = np.empty(limit, np.float32)
    order = np.arange(len(rows))  # the rows of a node are contiguous
    waiting = np.empty((limit + 1, 4), np.int64)  # row range, level and parent of each candidate; most frequent last
    count, made = 0, 0
    begin, end, level, parent = 0, len(rows), 0, -1
    while True:
        if level < rows.shape[1]:
            segment = order[begin:end].copy()
            keys = rows[segment, level]
            ranks = np.argsort(keys, kind="mergesort")
            for i in range(end - begin):
                order[begin + i] = segment[ranks[i]]
            start = begin
            for i in range(begin, end):
                if i + 1 == end or rows[order[i + 1], level] != rows[order[i], level]:
                    if rows[order[i], level] != END:
                        count = _wait(waiting, count, limit - made, start, i + 1, level, parent)
                    start = i + 1
        if count == 0 or made == limit:
            return tokens[:made], parents[:made], shares[:made]
        count -= 1
        begin, end, level, parent = waiting[count, 0], waiting[count, 1], waiting[count, 2], waiting[count, 3]
        tokens[made], parents[made] = rows[order[begin], level], parent
        shares[made] = (end - begin) / len(rows)
        parent, level = made, level + 1
        made += 1


@njit(cache=True, nogil=True)
def _wait(waiting: Array, count: int, room: int, begin: int, end: int, level: int, parent: int) -> int:
    """Insert a candidate into the queue and return the queue's length; if it is full, the least frequent is dropped."""
    place = count
    while place > 0:
        size = waiting[place - 1, 1] - waiting[place - 1, 0]
        if size < end - begin or (size == end - begin and waiting[place - 1, 2] > level):
            break
        place -= 1
    if count >= room:
        if place == 0:
            return count
        for i in range(1, place):
            waiting[i - 1] = waiting[i]
        place -= 1
    else:
        for i in range(count, place, -1):
            waiting[i] = waiting[i - 1]
        count += 1
    waiting[place, 0], waiting[place, 1], waiting[place, 2], waiting[place, 3] = begin, end, level, parent
    return count
