"""Best-first search over the successor table: the N most probable continuations as a tree.

The tree that maximises the expected number of accepted tokens consists of the N nodes with the largest joint
probability (Sequoia, Chen et al. 2024, arXiv 2402.12374; OPT-Tree, Wang et al. 2024, arXiv 2406.17276). A node is never
more probable than its parent, so one list, kept sorted and cut at N, serves as both frontier and result: expanding its
entries in order inserts only after the current one.

Successors come from the tri-gram row; the probability mass that it reserves goes to the bi-gram row (interpolation
after Witten and Bell, 1991). With weights w_i, total W, m successors and one observation u,

    P(c | a, b) = (w_c + e P(c | b)) / (W + e),    e = escape u m,    P(c | b) = w'_c / (W' + escape u m').

The exploitation term is P; an exploration bonus raises rows with few observations, whose estimates are least certain:
nodes are ranked by P (1 + exploration / sqrt(1 + W / u)), the square-root bonus of PUCT without its randomness.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from speculant.core.tree import Array
from speculant.drafters.aded.frozen import Frozen
from speculant.drafters.aded.rows import LONGEST_ROW, NONE, UNIT, TableLevel
from speculant.drafters.aded.table import LearningRule, lookup


@njit(cache=True, nogil=True, inline="always")
def insert(count: int, limit: int, score: float, order: Array, scores: Array) -> int:
    """Insert a candidate into the ranking, after equal scores; return the slot in which to store it.

    `order` contains the slots of the ranked candidates, `scores` their scores in the same order. A full ranking drops
    its last candidate and reuses its slot.
    """
    last = min(count, limit - 1)
    slot = order[last] if count == limit else count
    low, high = 0, last
    while low < high:
        middle = (low + high) >> 1
        if scores[middle] < score:
            high = middle
        else:
            low = middle + 1
    for i in range(last, low, -1):
        order[i] = order[i - 1]
    for i in range(last, low, -1):
        scores[i] = scores[i - 1]
    order[low], scores[low] = slot, score
    return slot


@njit(cache=True, nogil=True)
def best_first(
    young: TableLevel, old: TableLevel, base: Frozen, before: int, root: int, limit: int, deepest: int,
    rule: LearningRule, escape: float, exploration: float, cut: float,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Return tokens Int32[N], parents Int32[N] and joint probabilities Float32[N], N <= limit, best first.

    Args:
        young, old, base, rule: levels and learning rule of the table.
        before, root: last two tokens of the text; `before` is NONE if there is only one.
        limit: maximum number of nodes.
        deepest: maximum depth of a node.
        escape: weight that a row reserves for unseen successors, in observations per successor.
        exploration: weight of the exploration bonus.
        cut: a node is not expanded if a child would need a conditional probability above this to enter the tree; 1
            makes the search exact.
    """
    order, scores = np.empty(limit, np.int32), np.empty(limit, np.float32)
    tokens, parents = np.empty(limit, np.int32), np.empty(limit, np.int32)  # by slot; a parent is a rank
    joints, depths = np.empty(limit, np.float32), np.empty(limit, np.int32)
    row, row_weights = np.empty(LONGEST_ROW, np.int64), np.empty(LONGEST_ROW, np.int64)
    back, back_weights = np.empty(LONGEST_ROW, np.int64), np.empty(LONGEST_ROW, np.int64)
    count = 0
    for rank in range(-1, limit - 1):
        # 1. Take the best node not yet expanded, the root first; stop if its children cannot enter the tree.
        joint, ceiling = np.float32(1), np.float32(math.inf)
        a, b, depth = before, root, np.int32(1)  # context and depth of the children
        if rank >= 0:
            if rank >= count or (count == limit and scores[rank] * np.float32(cut) <= scores[limit - 1]):
                break
            slot = order[rank]
            depth = depths[slot] + np.int32(1)
            if depth > deepest:
                continue
            joint, ceiling, b = joints[slot], scores[rank], np.int64(tokens[slot])
            a = root if parents[slot] < 0 else np.int64(tokens[order[parents[slot]]])

        # 2. Read the row of the last two tokens, and compute the mass it reserves for unseen successors.
        length = 0 if a == NONE else lookup(young, old, base, a, b, rule, row, row_weights)
        total = 0
        for i in range(length):
            total += row_weights[i]
        opened = escape * UNIT * length if length else 1.0
        open_share = joint * np.float32(opened / (total + opened))
        spread = np.float32(1 + exploration / math.sqrt(1 + total / UNIT))

        # 3. Continue only if the best child can enter; the row of the last token divides the reserved mass.
        scale = joint / np.float32(total + opened)
        maximum = row_weights[0] * scale if length else np.float32(0)
        if count == limit and (maximum + open_share) * spread <= scores[limit - 1]:
            continue
        back_length = lookup(young, old, base, np.int64(NONE), b, rule, back, back_weights)
        back_total = 0
        for i in range(back_length):
            back_total += back_weights[i]
        back_scale = open_share / np.float32(back_total + escape * UNIT * back_length + 1)
        best_back = back_weights[0] * back_scale if back_length else np.float32(0)
        # 4. Insert the children of both rows by score; a child in both is inserted once.
        for i in range(length + back_length):
            if i < length:
                token, p = row[i], row_weights[i] * scale
                if count == limit and (p + best_back) * spread <= scores[limit - 1]:
                    continue
                for j in range(back_length):
                    if back[j] == token:
                        p += back_weights[j] * back_scale
                        back_weights[j] = 0
                        break
                p = min(p, joint)
            else:
                token, p = back[i - length], back_weights[i - length] * back_scale
            score = min(p * spread, ceiling)
            if p > 0 and (count < limit or score > scores[limit - 1]):
                slot = insert(count, limit, score, order, scores)
                tokens[slot], parents[slot], joints[slot], depths[slot] = token, rank, p, depth
                count = min(count + 1, limit)
    return tokens[order[:count]], parents[order[:count]], joints[order[:count]]
