"""ADED's search exactly as published: PUCT over the tri-gram table.

Liu et al., arXiv 2407.12021, as in its released code. This includes its ineffective value function: the roll-out looks
up the transition to a token that the state already contains, which almost always fails, so only the prior guides the
search. Kept for comparison; use search.py instead.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from speculant.core.tree import Array
from speculant.drafters.aded.frozen import Frozen
from speculant.drafters.aded.rows import LONGEST_ROW, TableLevel
from speculant.drafters.aded.table import LearningRule, lookup

SCALE = 1300  # table weights per unit of the paper's matrix, chosen so that its cap of 3.0 fits
BUDGET = 64
_MAX_NODES = 65536


class PuctConstants(NamedTuple):
    """Constants of the search.

    Attributes:
        iterations: number of roll-outs, 150 as published.
        states: number of states in a path, including the root's, so that the published 4 look three tokens ahead.
        c1, c2: constants of the score, in which the prior's weight at N visits is c1 + ln((N + c2 + 1) / c2); 32 and 8
            as published.
    """

    iterations: int
    states: int
    c1: float
    c2: float


@njit(cache=True, nogil=True)
def _uniform(state: Array) -> float:
    """Return a number in [0, 1) and advance the generator (xorshift64*)."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return ((x * np.uint64(2685821657736338717)) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True)
def _roll_out(
    young: TableLevel, old: TableLevel, base: Frozen, states: Array, depth: int, rule: LearningRule, random: Array,
    row: Array, weights: Array,
) -> float:  # fmt: skip
    """Walk randomly to the last state; return 1 plus the weights that the published lookup finds along the path."""
    while depth < len(states):
        length = lookup(young, old, base, states[depth - 1, 0], states[depth - 1, 1], rule, row, weights)
        if length == 0:
            break
        total = 0
        for i in range(length):
            total += weights[i]
        aim = _uniform(random) * total
        chosen = 0
        while chosen < length - 1 and aim >= weights[chosen]:
            aim -= weights[chosen]
            chosen += 1
        states[depth, 0], states[depth, 1] = states[depth - 1, 1], row[chosen]
        depth += 1
    value = 1.0
    for k in range(depth - 1):
        length = lookup(young, old, base, states[k, 0], states[k, 1], rule, row, weights)
        for i in range(length):
            if row[i] == states[k + 1, 0]:
                value += weights[i] / SCALE
    return value


@njit(cache=True, nogil=True)
def puct(
    young: TableLevel, old: TableLevel, base: Frozen, before: int, root: int, rule: LearningRule,
    constants: PuctConstants, random: Array,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Run the search and return its nodes in pre-order: tokens, parents and visits; node 0 is the root."""
    tokens, parents = np.empty(_MAX_NODES, np.int64), np.empty(_MAX_NODES, np.int64)
    first, length = np.empty(_MAX_NODES, np.int64), np.empty(_MAX_NODES, np.int64)
    visits, scores = np.empty(_MAX_NODES, np.int64), np.empty(_MAX_NODES, np.float64)
    priors = np.empty(_MAX_NODES, np.float64)
    row, weights = np.empty(LONGEST_ROW, np.int64), np.empty(LONGEST_ROW, np.int64)
    states = np.empty((constants.states, 2), np.int64)
    tokens[0], parents[0], first[0], length[0], visits[0], scores[0] = root, -1, -1, 0, 0, 0.0
    count = 1
    for _ in range(constants.iterations):
        # 1. Descend to a leaf by the largest PUCT score, and expand it.
        node, depth = 0, 1
        states[0, 0], states[0, 1] = before, root
        while depth < constants.states:
            leaf = first[node] < 0
            if leaf:
                n = lookup(young, old, base, states[depth - 1, 0], states[depth - 1, 1], rule, row, weights)
                if n == 0 or count + n > _MAX_NODES:
                    break
                first[node], length[node] = count, n
                for i in range(n):
                    child = count + i
                    tokens[child], parents[child], priors[child] = row[i], node, weights[i] / SCALE
                    first[child], length[child], visits[child], scores[child] = -1, 0, 0, 0.0
                count += n
                node = count - 1
            else:
                parent_visits = visits[node]
                growth = math.log((parent_visits + constants.c2 + 1) / constants.c2)
                bonus = (constants.c1 + growth) * math.sqrt(parent_visits)
                best, best_score = -1, -math.inf
                for child in range(first[node], first[node] + length[node]):
                    n = visits[child]
                    score = math.inf if n == 0 else scores[child] / n + bonus * priors[child] / (1 + n)
                    if score > best_score:
                        best, best_score = child, score
                node = best
            states[depth, 0], states[depth, 1] = states[depth - 1, 1], tokens[node]
            depth += 1
            if leaf:
                break
        # 2. Play out from the leaf, and add the value to all nodes on the path.
        value = _roll_out(young, old, base, states, depth, rule, random, row, weights)
        while node >= 0:
            visits[node] += 1
            scores[node] += value
            node = parents[node]
    # 3. Reorder the nodes to pre-order, and renumber their parents.
    order = np.empty(count, np.int64)
    place = np.empty(count, np.int64)
    stack = np.empty(count, np.int64)
    stack[0], top, at = 0, 1, 0
    while top > 0:
        top -= 1
        node = stack[top]
        order[at], place[node] = node, at
        at += 1
        for child in range(first[node] + length[node] - 1, first[node] - 1, -1):
            if child >= 0:
                stack[top] = child
                top += 1
    above = np.empty(count, np.int64)
    for i in range(count):
        above[i] = place[parents[order[i]]] if i > 0 else -1
    return tokens[order], above, visits[order]


def select_published_paths(tokens: Array, parents: Array, visits: Array, greedy: Any, *, top: int) -> list[list[int]]:
    """Return the published draft of a search tree: fewer than `top` paths, each one token longer than the search's.

    The paths lead to the `top` most visited nodes. Each path of at least two states is extended by one greedy token;
    the root's own path is dropped. While the numbers of distinct tokens per path add up to more than 64, whole paths
    are deleted, longest first; shared prefixes are counted once per path.

    Args:
        tokens, parents, visits: result of `puct`.
        greedy: function of two tokens that returns the heaviest successor, or None.
        top: number of nodes, 24 as published.
    """
    paths = []
    for node in np.argsort(-visits, kind="stable")[:top].tolist():
        path = []
        while node >= 0:
            path.append(int(tokens[node]))
            node = int(parents[node])
        path.reverse()
        if len(path) >= 2 and (following := greedy(path[-2], path[-1])) is not None:
            path.append(following)
        if len(path) > 1 and path[1:] not in paths:
            paths.append(path[1:])
    costs = [len(set(path)) for path in paths]
    total = sum(costs)
    doomed = set()
    for i in sorted(range(len(paths)), key=lambda i: -costs[i]):
        if total <= BUDGET:
            break
        total -= costs[i]
        doomed.add(i)
    return [path for i, path in enumerate(paths) if i not in doomed]
