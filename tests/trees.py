"""Random drafts for tests, and the slow but obvious way to read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from hypothesis import strategies as st

from speculant.core.tree import ROOT, DraftTree, Queries


@st.composite
def drafts(draw: st.DrawFn, *, maximum: int = 12, vocabulary: int = 4) -> DraftTree:
    """Draw trees of 0 to `maximum` nodes whose siblings differ, in any order that has parents first."""
    parents: list[int] = []
    tokens: list[int] = []
    weights: list[float] = []
    for _ in range(draw(st.integers(0, maximum))):
        parent = draw(st.integers(ROOT, len(tokens) - 1))
        taken = {token for token, above in zip(tokens, parents, strict=True) if above == parent}
        free = [token for token in range(vocabulary) if token not in taken]
        if free:
            tokens.append(draw(st.sampled_from(free)))
            weights.append((1.0 if parent == ROOT else weights[parent]) * draw(st.integers(0, 4)) / 4)
            parents.append(parent)
    return make_tree(tokens, parents, weights)


def random_draft(random: np.random.Generator, nodes: int, vocabulary: int) -> DraftTree:
    """Return a tree of at most `nodes` nodes whose siblings differ."""
    tokens: list[int] = []
    parents: list[int] = []
    for _ in range(nodes):
        parent = int(random.integers(ROOT, len(tokens)))
        token = int(random.integers(vocabulary))
        if (parent, token) not in set(zip(parents, tokens, strict=True)):
            parents.append(parent)
            tokens.append(token)
    return make_tree(tokens, parents)


def make_tree(tokens: Iterable[int], parents: Iterable[int], weights: Iterable[float] | None = None) -> DraftTree:
    """Build a tree from plain numbers; without weights each is 1."""
    tokens = np.array(list(tokens), np.int32)
    given = np.ones(len(tokens), np.float32) if weights is None else np.array(list(weights), np.float32)
    return DraftTree(tokens, np.array(list(parents), np.int32), given)


def chain(*weights: float) -> DraftTree:
    """Return a line of nodes with these joint probabilities and the tokens 0, 1, 2, ..."""
    return make_tree(range(len(weights)), range(-1, len(weights) - 1), weights)


def ancestry(tree: DraftTree) -> list[set[int]]:
    """Return, for each node, itself and all nodes above it."""
    sets: list[set[int]] = []
    for node, parent in enumerate(tree.parents.tolist()):
        sets.append({node} if parent == ROOT else {node} | sets[parent])
    return sets


def paths_of(tree: DraftTree) -> dict[tuple[int, ...], float]:
    """Return the weight of each node under its tokens from the root."""
    names: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        names.append((*(() if parent == ROOT else names[parent]), token))
    return dict(zip(names, tree.weights.tolist(), strict=True))


def beside(tree: DraftTree, queries: DraftTree) -> DraftTree:
    """Return a draft with the nodes of another as its queries."""
    return DraftTree(tree.tokens, tree.parents, tree.weights, queries=Queries(queries.tokens, queries.parents))


def as_nodes(tree: DraftTree) -> DraftTree:
    """Return the draft whose nodes are all rows but the root."""
    tokens, parents = tree.rows(0)
    return make_tree(tokens[1:], parents[1:] - 1)


def leaves(tree: DraftTree) -> list[int]:
    """Return the nodes without children, in order."""
    inner = set(tree.parents.tolist())
    return [node for node in range(len(tree)) if node not in inner]


def expected_length(accuracies: Sequence[Sequence[float]], paths: Iterable[Sequence[int]]) -> float:
    """Return the expected tokens of a round with a tree of ranks, the bonus token included."""
    return 1 + math.fsum(math.prod(accuracies[depth][rank] for depth, rank in enumerate(path)) for path in paths)
