"""Drafting from a suffix tree: the most frequent continuations of a context, best first.

Oliaro, Jia, Campos, Qiao: "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications", NeurIPS 2025,
arXiv 2411.04975, section 3. A node's estimate is the product of the relative frequencies along its path (equation 1). A
draft is grown greedily by the largest estimate, and its score is the sum of its nodes' estimates, the expected number
of accepted tokens. Every suffix of the text that occurs in the tree is tried, with at most `factor` nodes per matching
token, and the draft with the best score is kept; ties go to the longest match.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from speculant.core.tree import Array
from speculant.drafters.suffix.nodes import CHILD, COUNT, EDGE, NEXT, ROOT, START, Tree, child_of

Places = npt.NDArray[np.int64]


@njit(cache=True, nogil=True)
def find(tree: Tree, log: Array, text: Array) -> tuple[int, int]:
    """Return where a text ends in the tree: a node and an offset into its edge; ROOT if the text does not occur."""
    node, used, length, start = ROOT, 0, 0, 0
    for token in text:
        if used == length:
            node = child_of(tree, node, token)
            if node == ROOT:
                return ROOT, 0
            used, length, start = 1, tree.nodes[node, EDGE] & 127, tree.nodes[node, START]
        elif log[start + used] == token:
            used += 1
        else:
            return ROOT, 0
    return node, used


@njit(cache=True, nogil=True)
def find_suffixes(tree: Tree, log: Array, text: Array) -> Array:
    """Return where each suffix of a text that occurs in the tree ends, Int64[M, 2], shortest suffix first."""
    places = np.empty((len(text), 2), np.int64)
    for k in range(len(text)):
        node, used = find(tree, log, text[len(text) - k - 1 :])
        if node == ROOT:
            return places[:k]
        places[k, 0], places[k, 1] = node, used
    return places


@njit(cache=True, nogil=True, inline="always")
def _push(count: int, p: float, level: int, node: int, at: int, parent: int, scores: Array, entries: Array) -> int:
    """Insert a candidate into the frontier and return its size; the best is last, and of equals the shallowest."""
    place = count
    while place > 0 and (scores[place - 1] > p or (scores[place - 1] == p and entries[place - 1, 0] <= level)):
        scores[place] = scores[place - 1]
        for i in range(4):  # assigning rows takes seconds to compile
            entries[place, i] = entries[place - 1, i]
        place -= 1
    scores[place] = p
    entries[place, 0], entries[place, 1], entries[place, 2], entries[place, 3] = level, node, at, parent
    return count + 1


@njit(cache=True, nogil=True)
def expand(
    tree: Tree, log: Array, node: int, used: int, limit: int, deepest: int, unseen: int, min_probability: float,
    tokens: Array, parents: Array, joints: Array,
) -> tuple[int, float]:  # fmt: skip
    """Write the `limit` most frequent continuations of a context into the arrays; return their number and score.

    Args:
        tree, log: the tree and its log.
        node, used: where the context ends, as returned by `find`.
        limit: maximum number of nodes.
        deepest: maximum depth of a node.
        unseen: added to the count of the context, for its current occurrence.
        min_probability: nodes are drafted only if their estimate is above this.
        tokens, parents, joints: output arrays Int32, Int32 and Float64[limit].
    """
    nodes = tree.nodes
    scores, entries = np.empty(2 * limit + 2, np.float64), np.empty((2 * limit + 2, 4), np.int64)
    made, waiting, score = 0, 0, 0.0
    joint = nodes[node, COUNT] / (nodes[node, COUNT] + unseen)
    at, parent, level = used, -1, 0
    while True:
        # The current path ends `at` tokens into the node's edge, `level` levels deep in the draft.
        if level < deepest:
            if at < nodes[node, EDGE] & 127:
                waiting = _push(waiting, joint, level, node, at, parent, scores, entries)
            elif nodes[node, CHILD] != ROOT:
                child = nodes[node, CHILD]
                p = min(joint, joint / nodes[node, COUNT] * nodes[child, COUNT])
                waiting = _push(waiting, p, level, child, 0, parent, scores, entries)
        if waiting == 0 or made == limit or scores[waiting - 1] <= min_probability:
            return made, score
        waiting -= 1
        joint, level, node, at, parent = (
            scores[waiting], entries[waiting, 0], entries[waiting, 1], entries[waiting, 2], entries[waiting, 3]
        )  # fmt: skip
        after = nodes[node, NEXT]
        if at == 0 and after != ROOT:
            p = joint / nodes[node, COUNT] * nodes[after, COUNT]
            waiting = _push(waiting, min(p, joint), level, after, 0, parent, scores, entries)
        tokens[made], parents[made], joints[made] = log[nodes[node, START] + at], parent, joint
        score += joint
        parent, at, level = made, at + 1, level + 1
        made += 1


@njit(cache=True, nogil=True)
def speculate(
    tree: Tree, log: Array, places: Array, unseen: int, depth: int, deepest: int, limit: int, factor: float,
    min_probability: float,
) -> tuple[Array, Array, Array, float]:  # fmt: skip
    """Return tokens Int32[N], parents Int32[N], joint probabilities Float64[N] and score of the best draft.

    Args:
        tree, log: the tree and its log.
        places: Int64[M, 2]; row k is where the suffix of k + 1 tokens of the text ends, as returned by `find`.
        unseen: 1 if the tree does not contain the current text, else 0.
        depth: depth of the tree.
        deepest: maximum depth of a node.
        limit: maximum number of nodes.
        factor: nodes per matching token.
        min_probability: nodes are drafted only if their estimate is above this.
    """
    nodes = tree.nodes
    tokens, parents, joints = np.empty(limit, np.int32), np.empty(limit, np.int32), np.empty(limit, np.float64)
    trial, trial_parents, trial_joints = np.empty_like(tokens), np.empty_like(parents), np.empty_like(joints)
    best, best_score = 0, 0.0
    for k in range(len(places) - 1, -1, -1):
        node, used = places[k, 0], places[k, 1]
        count = nodes[node, COUNT]
        maximum = min(limit, int(factor * (k + 1) + 1e-6))
        if used == nodes[node, EDGE] & 127:
            child = nodes[node, CHILD]
            if child == ROOT:
                continue
            highest = nodes[child, COUNT] / (count + unseen)
        else:
            highest = count / (count + unseen)
        # No estimate exceeds the first node's, and the sum over a level cannot exceed the context's share of its count.
        bound = min(highest * maximum, count / (count + unseen) * min(deepest, depth - k - 1))
        if bound <= best_score:
            continue
        if k > 0 and maximum == limit and int(factor * k + 1e-6) >= limit and nodes[places[k - 1, 0], COUNT] == count:
            continue  # the shorter suffix occurred nowhere else, and has more depth left below it
        made, score = expand(
            tree, log, node, used, maximum, min(depth, deepest), unseen, min_probability,
            trial, trial_parents, trial_joints,
        )  # fmt: skip
        if score > best_score:
            best, best_score = made, score
            tokens, trial = trial, tokens
            parents, trial_parents = trial_parents, parents
            joints, trial_joints = trial_joints, joints
    return tokens[:best], parents[:best], joints[:best], best_score
