"""The search finds the most promising tree there is, and its weights are the documented probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest

from speculant.core.tree import DraftTree
from speculant.drafters.aded.frozen import freeze
from speculant.drafters.aded.rows import NONE, UNIT
from speculant.drafters.aded.search import best_first
from speculant.drafters.aded.table import TrigramTable
from tables import COUNTS, ids, row_of, table
from trees import paths_of

Path = tuple[int, ...]


def search(held: TrigramTable, before: int, root: int, limit: int, escape: float, exploration: float) -> DraftTree:
    """Run the search as the drafter does."""
    found = best_first(held.young, held.old, held.base, before, root, limit, limit, held.rule, escape, exploration, 1.0)
    return DraftTree(*found)


def successors(held: TrigramTable, a: int, b: int, escape: float) -> tuple[dict[int, float], float]:
    """Return P(c | a, b) by the formula of the module, and the tri-gram row's total.

    What a row leaves open is, in weights, escape * UNIT for each of its successors; an unknown tri-gram row
    leaves everything open. One unit more in the bi-gram row's total keeps it from being 0.
    """
    row = [] if a == NONE else row_of(held, a, b)
    back = row_of(held, NONE, b)
    total = sum(weight for _, weight in row)
    opened = escape * UNIT * len(row) if row else 1.0
    back_total = sum(weight for _, weight in back) + escape * UNIT * len(back) + 1
    distribution = {c: opened / (total + opened) * weight / back_total for c, weight in back}
    for c, weight in row:
        distribution[c] = distribution.get(c, 0.0) + weight / (total + opened)
    return {c: p for c, p in distribution.items() if p > 0}, total


class Exhaustive:
    """The slow way: every successor of every path is tried."""

    def __init__(self, held: TrigramTable, before: int, root: int, escape: float, exploration: float) -> None:
        self.held, self.start, self.escape, self.exploration = held, (before, root), escape, exploration
        self.known: dict[tuple[int, int], tuple[dict[int, float], float]] = {}

    def below(self, path: Path, joint: float, score: float) -> dict[Path, tuple[float, float]]:
        """Return joint probability and score of the children of a path."""
        context = (*self.start, *path)[-2:]
        if context not in self.known:
            self.known[context] = successors(self.held, *context, self.escape)
        distribution, total = self.known[context]
        spread = 1 + self.exploration / math.sqrt(1 + total / UNIT)
        return {(*path, c): (joint * p, min(joint * p * spread, score)) for c, p in distribution.items()}

    def rate(self, path: Path) -> tuple[float, float]:
        """Return joint probability and score of a path."""
        rated = 1.0, math.inf
        for depth in range(len(path)):
            rated = self.below(path[:depth], *rated)[path[: depth + 1]]
        return rated

    def scores(self, minimum: float) -> list[float]:
        """Return the scores of all paths that reach `minimum`, best first."""
        scores: list[float] = []
        paths: list[tuple[Path, float, float]] = [((), 1.0, math.inf)]
        while paths:
            for path, (joint, score) in self.below(*paths.pop()).items():
                if score >= minimum:
                    scores.append(score)
                    paths.append((path, joint, score))
        return sorted(scores, reverse=True)


def random_table(seed: int) -> tuple[TrigramTable, int, int]:
    """Return a table over a small base, and two tokens to start from."""
    random = np.random.default_rng(seed)
    vocabulary = int(random.integers(2, 7))
    base = None
    if seed % 2:
        a, b, c = (axis.ravel() for axis in np.indices((vocabulary + 1, vocabulary, vocabulary)))
        kept = random.random(len(a)) < 0.3
        weight = random.integers(1, 400, len(a))
        base = freeze(a[kept], b[kept], c[kept], weight[kept], vocabulary=vocabulary)
    held = table(base=base)
    held.learn(random.integers(0, vocabulary, int(random.integers(0, 80))).astype(np.int32))
    before, root = (int(token) for token in random.integers(0, vocabulary, 2))
    return held, NONE if seed % 5 == 0 else before, root


@pytest.mark.parametrize("exploration", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("escape", [0.0, 0.7, 2.0])
def test_finds_the_best_tree(escape: float, exploration: float) -> None:
    """Against trying everything: the same scores, and each weight is its path's probability."""
    sizes = set()
    for seed in range(40):
        held, before, root = random_table(seed)
        slow = Exhaustive(held, before, root, escape, exploration)
        for limit in (1, 2, 7, 24):
            tree = search(held, before, root, limit, escape, exploration)
            rated = {path: slow.rate(path) for path in paths_of(tree)}
            assert len(rated) == len(tree) <= limit
            assert tree.weights.tolist() == pytest.approx([joint for joint, _ in rated.values()], rel=1e-4)
            scores = [score for _, score in rated.values()]
            assert scores == pytest.approx(sorted(scores, reverse=True), rel=1e-4)
            # A draft that is not full holds all paths there are.
            minimum = min(scores) * 0.9999 if len(tree) == limit else 0.0
            assert scores == pytest.approx(slow.scores(minimum)[:limit], rel=1e-4)
            sizes.add(len(tree))
    assert {0, 1, 24} <= sizes


@pytest.mark.parametrize(("cut", "share"), [(0.0, 0.8), (0.2, 0.97), (0.6, 0.99)])
def test_cutting_saves_time_not_nodes(cut: float, share: float) -> None:
    """A cut search fills the budget, too, keeps the weights' meaning, and loses little of their sum."""
    exact, found = 0.0, 0.0
    for seed in range(40):
        held, before, root = random_table(seed)
        whole = search(held, before, root, 24, 0.7, 1.0)
        levels = held.young, held.old, held.base
        part = DraftTree(*best_first(*levels, before, root, 24, 24, held.rule, 0.7, 1.0, cut))
        slow = Exhaustive(held, before, root, 0.7, 1.0)
        assert len(part) == len(whole)
        assert part.weights.tolist() == pytest.approx([slow.rate(path)[0] for path in paths_of(part)], rel=1e-4)
        exact, found = exact + float(whole.weights.sum()), found + float(part.weights.sum())
    assert share * exact <= found < exact


def test_exploration_lifts_what_was_seen_seldom() -> None:
    """Of two equally probable branches the one whose continuation is less certain is drafted on; weights stay."""
    held = table()
    for _ in range(7):
        held.learn(ids([1, 3, 5]), 2)
        held.learn(ids([1, 3, 5]), 2)
    held.learn(ids([0, 1, 2]), 2)
    held.learn(ids([1, 2, 4]), 2)
    held.learn(ids([0, 1, 3]), 2)
    plain, curious = (search(held, 0, 1, 3, 0.7, exploration) for exploration in (0.0, 8.0))
    assert [len(path) for path in paths_of(plain)] == [1, 1, 2]
    assert (1, 3) not in paths_of(plain)
    assert (3, 5) in paths_of(plain)
    assert (2, 4) in paths_of(curious)
    assert paths_of(curious)[2,] == paths_of(plain)[2,]


def test_certain_chains_are_no_invalid_trees() -> None:
    """Where every step is certain, rounding never lifts a weight above its parent's, however deep the draft."""
    random = np.random.default_rng(3)
    for memory in (0, 8 * UNIT):
        held = table(COUNTS._replace(memory=memory))
        cycle = random.permutation(50)
        held.learn(np.tile(cycle, 200).astype(np.int32))
        for escape in (0.0, 1e-9, 0.01):
            tree = search(held, int(cycle[3]), int(cycle[4]), 300, escape, 1.0)
            assert tree.depths().max() > 100
            assert len(tree) == 300


def test_an_unknown_context_backs_off() -> None:
    """A pair never seen is continued by what followed its last token; a token never seen by nothing."""
    held = table()
    held.learn(ids([1, 2, 3]))
    assert search(held, 9, 2, 5, 0.7, 1.0).tokens.tolist() == [3]
    assert search(held, NONE, 2, 5, 0.7, 1.0).tokens.tolist() == [3]
    assert len(search(held, 1, 9, 5, 0.7, 1.0)) == 0
    assert len(search(table(), NONE, 1, 5, 0.7, 1.0)) == 0


def test_same_input_same_draft() -> None:
    """Engines with several ranks must draft the same tree."""
    for seed in range(10):
        drafts = [search(*random_table(seed), 24, 0.7, 1.0) for _ in range(2)]
        for name in ("tokens", "parents", "weights"):
            assert getattr(drafts[0], name).tolist() == getattr(drafts[1], name).tolist()
