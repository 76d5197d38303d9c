"""Draft searches on ADED's table that the study compares: PUCT, a greedy tree, full traversal and best-first search.

All read the same rows. A search takes the table, the last two tokens and the maximum nodes, and returns a tree.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit

from speculant.core.tree import ROOT, Array, DraftTree
from speculant.drafters.aded import puct
from speculant.drafters.aded.frozen import Frozen
from speculant.drafters.aded.paper import AdedPaperSettings, draft
from speculant.drafters.aded.rows import LONGEST_ROW, TableLevel
from speculant.drafters.aded.search import best_first, insert
from speculant.drafters.aded.table import LearningRule, TrigramTable, lookup

Search = Callable[[TrigramTable, int, int, int], DraftTree]

DEPTH = 4  # depth of the published drafts


def published(settings: AdedPaperSettings, vocabulary: int) -> Search:
    """Return PUCT with the published selection of paths."""
    random = np.ones(1, np.uint64)

    def search(table: TrigramTable, before: int, root: int, nodes: int) -> DraftTree:
        return draft(table, before, root, settings, random, vocabulary).head(nodes)

    return search


def most_visited(settings: AdedPaperSettings) -> Search:
    """Return PUCT whose draft consists of the most visited nodes, up to the limit."""
    random = np.ones(1, np.uint64)

    def search(table: TrigramTable, before: int, root: int, nodes: int) -> DraftTree:
        levels = table.young, table.old, table.base
        tokens, parents, visits = puct.puct(*levels, before, root, table.rule, settings.search(), random)
        chosen = np.argsort(-visits, kind="stable")[: nodes + 1]  # parents have more visits, or precede their children
        chosen = chosen[visits[chosen] > 0]
        place = np.full(len(tokens), ROOT, np.int32)
        place[chosen[1:]] = np.arange(len(chosen) - 1)
        shares = (visits[chosen[1:]] / visits[0]).astype(np.float32)
        return DraftTree.trusted(tokens[chosen[1:]].astype(np.int32), place[parents[chosen[1:]]], shares)

    return search


def best(depth: int, *, escape: float = 0.0, exploration: float = 0.0, cut: float = 1.0) -> Search:
    """Return best-first search by the product of row probabilities; bi-grams contribute with weight `escape`."""

    def search(table: TrigramTable, before: int, root: int, nodes: int) -> DraftTree:
        deepest = min(depth, nodes)
        found = best_first(
            table.young, table.old, table.base, before, root, nodes, deepest, table.rule, escape, exploration, cut
        )
        return DraftTree.trusted(*found)

    return search


def greedy(table: TrigramTable, before: int, root: int, nodes: int) -> DraftTree:
    """Return the heaviest successors of the root, each extended by its heaviest successors to the published depth."""
    found = _greedy(table.young, table.old, table.base, before, root, nodes // DEPTH, table.rule)
    return DraftTree.trusted(*found)


def exhaustive(table: TrigramTable, before: int, root: int, nodes: int) -> DraftTree:
    """Return the best nodes by the product of row probabilities, among all nodes up to the published depth."""
    tokens, depths, scores = _exhaustive(table.young, table.old, table.base, before, root, nodes, table.rule)
    paths = [row[:depth] for row, depth in zip(tokens.tolist(), depths.tolist(), strict=True)]
    return DraftTree.from_paths(paths, scores.tolist())


@njit(cache=True, nogil=True)
def _greedy(
    young: TableLevel, old: TableLevel, base: Frozen, before: int, root: int, chains: int, rule: LearningRule
) -> tuple[Array, Array, Array]:
    limit = chains * DEPTH
    tokens, parents = np.empty(limit, np.int32), np.empty(limit, np.int32)
    joints = np.empty(limit, np.float32)
    first, first_weights = np.empty(LONGEST_ROW, np.int64), np.empty(LONGEST_ROW, np.int64)
    row, weights = np.empty(LONGEST_ROW, np.int64), np.empty(LONGEST_ROW, np.int64)
    length = lookup(young, old, base, before, root, rule, first, first_weights)
    total = max(1, first_weights[:length].sum())
    count = 0
    for chain in range(min(length, chains)):
        a, b, joint, parent = root, first[chain], first_weights[chain] / total, -1
        for depth in range(DEPTH):
            tokens[count], parents[count], joints[count] = b, parent, joint
            parent = count
            count += 1
            n = lookup(young, old, base, a, b, rule, row, weights) if depth < DEPTH - 1 else 0
            if n == 0:
                break
            heaviest = np.argmax(weights[:n])
            joint *= weights[heaviest] / weights[:n].sum()
            a, b = b, row[heaviest]
    return tokens[:count], parents[:count], joints[:count]


@njit(cache=True, nogil=True)
def _exhaustive(
    young: TableLevel, old: TableLevel, base: Frozen, before: int, root: int, limit: int, rule: LearningRule
) -> tuple[Array, Array, Array]:
    """Visit every path, depth first."""
    order, scores = np.empty(limit, np.int32), np.empty(limit, np.float32)
    tokens, depths = np.empty((limit, DEPTH), np.int64), np.empty(limit, np.int64)
    rows, weights = np.empty((DEPTH, LONGEST_ROW), np.int64), np.empty((DEPTH, LONGEST_ROW), np.int64)
    lengths, places = np.zeros(DEPTH, np.int64), np.zeros(DEPTH, np.int64)
    joints, totals = np.ones(DEPTH + 1, np.float64), np.zeros(DEPTH, np.float64)
    count, level = 0, 0
    a, b, entered = before, root, True
    while level >= 0:
        if entered:
            lengths[level] = lookup(young, old, base, a, b, rule, rows[level], weights[level])
            totals[level] = weights[level, : lengths[level]].sum()
            places[level] = 0
        if places[level] == lengths[level]:
            level -= 1
            entered = False
            continue
        at = places[level]
        places[level] += 1
        score = np.float32(joints[level] * weights[level, at] / totals[level])
        joints[level + 1] = score
        if count < limit or score > scores[limit - 1]:
            slot = insert(count, limit, score, order, scores)
            for i in range(level + 1):
                tokens[slot, i] = rows[i, places[i] - 1]
            depths[slot] = level + 1
            count = min(count + 1, limit)
        entered = level + 1 < DEPTH
        if entered:
            a = rows[level - 1, places[level - 1] - 1] if level > 0 else root
            b = rows[level, at]
            level += 1
    return tokens[order[:count]], depths[order[:count]], scores[:count]
