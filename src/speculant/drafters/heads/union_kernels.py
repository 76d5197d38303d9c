"""Kernels of `united_session`: merge two drafts into one trie, compute candidate probabilities from both, and learn.

A round with a head and a memory merges some tens of candidates. One compiled call takes a few microseconds, where the
same in Python objects took a tenth of a small model's pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from speculant.core.tree import ROOT, Array, Float64, Int32
from speculant.drafters.copying.context import heaviest_first
from speculant.drafters.models.mixture import MINIMUM, RATE

FEATURES = 5
_NONE = -1.0  # marks a missing estimate


class Candidates(NamedTuple):
    """The C nodes of two drafts with a common root, parents first.

    Attributes:
        tokens, parents: Int32[C].
        first: Int32[C + 1], first child of the root and of each node; -1 for none.
        following: Int32[C], next child of the same parent; -1 for none.
        features: Float64[C, 5], see `united_session`: 1, both logits, whether the memory's and the head's are missing.
    """

    tokens: Int32
    parents: Int32
    first: Int32
    following: Int32
    features: Float64


@njit(cache=True, nogil=True)
def unite(head: Array, memory: Array, weights: Array, limit: int) -> tuple[Any, Any]:
    """Merge two drafts, and return the `limit` most probable nodes, most probable first.

    Args:
        head, memory: tokens, parents Int32[N] and joint probabilities Float32[N] of the drafts.
        weights: Float64[5], weights of the mixture.
        limit: maximum number of nodes returned.

    Returns:
        The fields of `Candidates`; tokens, parents Int32[n] and joint probabilities Float32[n].
    """
    maximum = len(head[0]) + len(memory[0])
    tokens, parents, opinions = (
        np.empty(maximum, np.int32),
        np.empty(maximum, np.int32),
        np.full((maximum + 1, 2), _NONE),
    )
    first, last = np.full(maximum + 1, ROOT, np.int32), np.full(maximum + 1, ROOT, np.int32)
    following = np.full(maximum, ROOT, np.int32)
    opinions[maximum] = 1.0  # the root's estimates, at index -1
    count = 0
    for whose, draft in enumerate((head, memory)):
        places = np.full(len(draft[0]) + 1, ROOT, np.int32)
        for node in range(len(draft[0])):
            above = places[draft[1][node]]
            found = first[above + 1]
            while found != ROOT and tokens[found] != draft[0][node]:
                found = following[found]
            if found == ROOT:
                found = count
                count += 1
                tokens[found], parents[found] = draft[0][node], above
                if first[above + 1] == ROOT:
                    first[above + 1] = found
                else:
                    following[last[above + 1]] = found
                last[above + 1] = found
            opinions[found, whose] = draft[2][node]
            places[node] = found
    features, joints = np.zeros((count, FEATURES)), np.empty(count)
    for parent in range(ROOT, count):
        if first[parent + 1] != ROOT:
            _weigh(first[parent + 1], following, opinions, parent, features, weights, joints)
    kept = heaviest_first(tokens[:count], parents[:count], joints, limit)
    return (tokens[:count], parents[:count], first[: count + 1], following[:count], features), kept


@njit(cache=True, nogil=True)
def _weigh(first, following, opinions, parent, features, weights, joints):  # type: ignore[no-untyped-def]
    """Write the features of the candidates below a node, and their joint probabilities.

    If a drafter has estimates for only some of them, the others count as less probable than the least of those.
    """
    for whose in range(2):
        above, least = opinions[parent, whose], 2.0
        node = first
        while node != ROOT:
            if opinions[node, whose] != _NONE:
                least = min(least, opinions[node, whose] / 2)
            node = following[node]
        node = first
        while node != ROOT:
            if above == _NONE or least > 1:
                features[node, 4 - whose] = 1.0
            else:
                own = least if opinions[node, whose] == _NONE else opinions[node, whose]
                p = min(max(own / max(above, 1e-9), MINIMUM), 1 - MINIMUM)
                features[node, 1 + whose] = np.log(p / (1 - p))
            node = following[node]
    total, node = 0.0, first
    while node != ROOT:
        features[node, 0] = 1.0
        joints[node] = _probability(features[node], weights)
        total += joints[node]
        node = following[node]
    whole = (1.0 if parent == ROOT else joints[parent]) / max(1.0, total)
    node = first
    while node != ROOT:
        joints[node] *= whole
        node = following[node]


@njit(cache=True, nogil=True)
def learn(candidates: Array, committed: Array, weights: Array) -> None:
    """Take a gradient step on the log loss of the candidates below each node on the path of committed tokens.

    Args:
        candidates: fields of `Candidates`.
        committed: Int32[n], committed tokens.
        weights: Float64[5], updated in place.
    """
    tokens, _, firsts, following, features = candidates
    parent, step = ROOT, np.empty(FEATURES)
    for token in committed:
        node, right = firsts[parent + 1], ROOT
        if node == ROOT:
            return
        step[:] = 0.0
        while node != ROOT:
            error = (1.0 if tokens[node] == token else 0.0) - _probability(features[node], weights)
            step += error * features[node]
            if tokens[node] == token:
                right = node
            node = following[node]
        weights += RATE * step
        if right == ROOT:
            return
        parent = right


@njit(cache=True, nogil=True)
def _probability(features, weights):  # type: ignore[no-untyped-def]
    total = 0.0
    for each in range(len(weights)):
        total += features[each] * weights[each]
    return 1 / (1 + np.exp(-total))


@njit(cache=True, nogil=True)
def follow(tokens: Array, parents: Array, committed: Array) -> Array:
    """Return the nodes Int64[A] of a draft that committed tokens Int32[n] lead to, in ascending order."""
    parent, found, path = ROOT, 0, np.empty(len(committed), np.int64)
    for token in committed:
        child = ROOT
        for node in range(max(parent, 0), len(tokens)):
            if parents[node] == parent and tokens[node] == token:
                child = node
                break
        if child == ROOT:
            break
        path[found] = parent = child
        found += 1
    return path[:found]


def warm_up() -> None:
    """Compile the kernels, so that no request waits for them."""
    weights, node = np.zeros(FEATURES), (np.zeros(1, np.int32), np.full(1, ROOT, np.int32), np.ones(1, np.float32))
    candidates, _ = unite(node, node, weights, 1)
    learn(candidates, node[0], weights)
    follow(*node[:2], node[0])
