"""Static trees: the ranks that they draft, and trees that cannot be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from speculant.core.drafter import Budget, SessionRequest
from speculant.core.errors import UsageError
from speculant.core.tree import DraftTree
from speculant.drafters.heads.static_tree import EAGLE_PATHS, RankPath, StaticTree, rank_paths
from speculant.drafters.models.level_session import LevelSession
from speculant.drafters.models.tree_acceptance import LevelAcceptance


class Text:
    """A text on a model whose distributions are drawn at random, once for every path."""

    depth, trees = 64, True

    def __init__(self, vocabulary: int = 12) -> None:
        self.vocabulary = vocabulary
        self.paths: list[tuple[int, ...]] = []

    def begin(self) -> Tensor:
        self.paths = []
        return self.distribution(())[None]

    def read(self, tokens: list[int], above: list[int]) -> tuple[list[int], Tensor]:
        first = len(self.paths)
        for token, row in zip(tokens, above, strict=True):
            self.paths.append((*(self.paths[row] if row >= 0 else ()), token))
        return list(range(first, len(self.paths))), torch.stack(
            [self.distribution(path) for path in self.paths[first:]]
        )

    def distribution(self, path: tuple[int, ...]) -> Tensor:
        source = torch.Generator().manual_seed(hash(path) % 1000)
        return torch.randn(self.vocabulary, generator=source).mul(2).softmax(-1)

    def ranks(self, path: tuple[int, ...]) -> RankPath:
        """Return the ranks of the tokens of a path."""
        orders = [self.distribution(path[:depth]).argsort(descending=True).tolist() for depth in range(len(path))]
        return tuple(order.index(token) for order, token in zip(orders, path, strict=True))


def drafted(text: Text, tree: StaticTree, **budget: int | bool) -> tuple[DraftTree, set[RankPath]]:
    """Return a draft and the rank paths of its nodes."""
    session = LevelSession(text, SessionRequest(prompt=np.array([1], np.int32)), tree)
    draft = session.propose(Budget(**{"nodes": 64, "depth": 64} | budget))
    paths = [tuple(int(draft.tokens[node]) for node in draft.path(place)) for place in range(len(draft))]
    return draft, {text.ranks(path) for path in paths}


@pytest.mark.parametrize("paths", [EAGLE_PATHS, rank_paths("0 2 00 21 212"), rank_paths("0 00 000 0000")])
def test_the_ranks_of_the_tree_are_drafted(paths: tuple[RankPath, ...]) -> None:
    """Guards the tree: its nodes and no others, each the token of its rank below its parent."""
    draft, found = drafted(Text(), StaticTree(paths, LevelAcceptance()))
    assert found == set(paths)
    assert len(draft) == len(paths)


def test_the_published_tree_of_eagle() -> None:
    """Guards the table: 25 nodes, 4, 8, 8, 3 and 2 at depths 1 to 5."""
    assert len(EAGLE_PATHS) == 25
    assert [sum(len(path) == depth for path in EAGLE_PATHS) for depth in range(1, 6)] == [4, 8, 8, 3, 2]


def test_small_budgets_keep_the_most_probable_nodes() -> None:
    """Guards the trimming: parents stay, and no node that is left out is more probable."""
    text = Text()
    whole, _ = drafted(text, StaticTree(EAGLE_PATHS, LevelAcceptance()))
    some, found = drafted(text, StaticTree(EAGLE_PATHS, LevelAcceptance()), nodes=9)
    assert len(some) == 9
    assert found <= set(EAGLE_PATHS)
    assert sorted(some.weights, reverse=True) == sorted(whole.weights, reverse=True)[:9]


def test_chains_and_shallow_drafts() -> None:
    """Guards engines that verify chains only, and texts that are nearly full."""
    _, found = drafted(Text(), StaticTree(EAGLE_PATHS, LevelAcceptance()), trees=False)
    assert found == set(rank_paths("0 00 000 0000 00000"))
    _, found = drafted(Text(), StaticTree(EAGLE_PATHS, LevelAcceptance()), depth=2)
    assert found == {path for path in EAGLE_PATHS if len(path) <= 2}


def test_vocabularies_smaller_than_a_rank() -> None:
    """Guards ranks that no token has: they are left out, with what stands below them."""
    _, found = drafted(Text(vocabulary=3), StaticTree(EAGLE_PATHS, LevelAcceptance()))
    assert found == {path for path in EAGLE_PATHS if max(path) < 3}


@pytest.mark.parametrize("paths", [(), ((0,), (0,)), ((0, 1),), ((0,), (0, -1)), tuple((i,) for i in range(65))])
def test_impossible_trees_are_refused(paths: tuple[RankPath, ...]) -> None:
    """Guards trees that are empty, too large, or have a node twice, without its parent or with a negative rank."""
    with pytest.raises(UsageError, match="static tree"):
        StaticTree(paths, LevelAcceptance())


def test_it_forecasts_from_measured_acceptance() -> None:
    """Guards sizing: what is accepted raises what the next draft is expected to gain."""
    acceptance = LevelAcceptance()
    tree = StaticTree(EAGLE_PATHS, acceptance)
    before = tree.forecast(25)
    draft, _ = drafted(Text(), tree)
    for _ in range(20):
        tree.learn(draft, [0, 1, 2, 3, 4])
    assert len(before) == 5
    assert (tree.forecast(25) > before).all()
