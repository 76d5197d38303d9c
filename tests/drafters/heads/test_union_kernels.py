"""The kernels of unions: the same trie, probabilities and learning as the formula written out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from speculant.core.tree import ROOT, DraftTree, Float64
from speculant.drafters.heads.union_kernels import Candidates, follow, learn, unite
from speculant.drafters.models.mixture import MINIMUM, Mixture
from trees import paths_of, random_draft

WEIGHTS = (0.5, 0.9, 0.6, 0.2, -0.3)
Path = tuple[int, ...]


def united(head: DraftTree, memory: DraftTree, weights: Float64, limit: int = 1000) -> tuple[Candidates, DraftTree]:
    """Return the candidates of two drafts, and the most probable ones as a draft, which is checked."""
    candidates, (tokens, parents, joints) = unite(
        *((each.tokens, each.parents, each.weights) for each in (head, memory)), weights, limit
    )
    return Candidates(*candidates), DraftTree(tokens, parents, joints)


def opinions(draft: DraftTree) -> dict[Path, float]:
    """Return the joint probability of each path, of equal ones the last."""
    return dict(zip(paths_of(draft), draft.weights.tolist(), strict=True))


def expected(head: DraftTree, memory: DraftTree, mixture: Mixture) -> tuple[dict[Path, float], dict[Path, Float64]]:
    """Return the joint probability and the features of each path, as the docstring of `united_session` has them."""
    known = opinions(head), opinions(memory)
    joints, features = {(): 1.0}, dict[Path, Float64]()
    paths = sorted({*known[0], *known[1]}, key=len)
    for parent in [(), *paths]:
        below = [path for path in paths if path[:-1] == parent]
        columns = []
        for own in known:
            whole, has = own.get(parent, None if parent else 1.0), [own[path] for path in below if path in own]
            if whole is None or not has:
                columns.append([None] * len(below))
            else:
                columns.append([own.get(path, min(has) / 2) / whole for path in below])
        rows = [
            [1.0, *(0.0 if p is None else _logit(p) for p in both), float(both[1] is None), float(both[0] is None)]
            for both in zip(*columns, strict=True)
        ]
        if below:
            p = mixture.probabilities(np.array(rows))
            joints |= {path: joints[parent] * float(each) for path, each in zip(below, p, strict=True)}
            features |= {path: np.array(row) for path, row in zip(below, rows, strict=True)}
    return joints, features


def _logit(p: float) -> float:
    p = min(max(p, MINIMUM), 1 - MINIMUM)
    return math.log(p / (1 - p))


def distinct(draft: DraftTree) -> DraftTree:
    """Return a draft without equal siblings."""
    return DraftTree.from_paths(paths_of(draft), draft.weights.tolist())


@pytest.mark.parametrize("seed", range(12))
def test_probabilities_are_those_of_the_formula(seed: int) -> None:
    """Guards the kernel: every path's features and joint probability, and the order of the best."""
    random, mixture = np.random.default_rng(seed), Mixture(WEIGHTS)
    head, memory = (distinct(random_draft(random, int(random.integers(0, 14)), 4)) for _ in range(2))
    joints, features = expected(head, memory, mixture)
    candidates, draft = united(head, memory, mixture.weights)
    found = opinions(draft)
    assert found.keys() == features.keys()
    for path, joint in found.items():
        assert joint == pytest.approx(joints[path], rel=1e-5)
    assert draft.weights.tolist() == sorted(draft.weights.tolist(), reverse=True)
    paths = list[Path]()
    for token, parent in zip(candidates.tokens.tolist(), candidates.parents.tolist(), strict=True):
        paths.append((*(() if parent == ROOT else paths[parent]), token))
    for path, row in zip(paths, candidates.features, strict=True):
        np.testing.assert_allclose(row, features[path], rtol=1e-5, atol=1e-6)
    assert paths_of(united(head, memory, mixture.weights, 3)[1]) == paths_of(draft.head(3))


@pytest.mark.parametrize("seed", range(12))
def test_learning_is_that_of_the_mixture(seed: int) -> None:
    """Guards the weights: a gradient step below each node of the committed path, until the trie lacks a token."""
    random, mixture = np.random.default_rng(seed), Mixture(WEIGHTS)
    head, memory = (distinct(random_draft(random, 12, 3)) for _ in range(2))
    candidates, _ = united(head, memory, mixture.weights)
    _, features = expected(head, memory, mixture)
    tokens = random.integers(0, 3, 5).tolist()
    seen = {
        parent: (
            [path[-1] for path in features if path[:-1] == parent],
            np.array([row for path, row in features.items() if path[:-1] == parent]),
        )
        for parent in {path[:-1] for path in features}
    }
    weights = mixture.weights.copy()
    learn(candidates, np.array(tokens, np.int32), weights)
    mixture.learn_path(seen, tokens)
    np.testing.assert_allclose(weights, mixture.weights, rtol=1e-5)


def test_the_path_of_committed_tokens() -> None:
    """Guards what a draft is said to have been right in: the nodes that tokens lead to."""
    draft = DraftTree.from_paths([[1, 2, 3], [1, 4], [5]])
    for tokens, path in (([1, 2, 3, 9], [0, 1, 2]), ([1, 4], [0, 3]), ([5, 1], [4]), ([7], [])):
        assert follow(draft.tokens, draft.parents, np.array(tokens, np.int32)).tolist() == path
    nothing = DraftTree.empty()
    assert not len(follow(nothing.tokens, nothing.parents, np.array([1], np.int32)))
