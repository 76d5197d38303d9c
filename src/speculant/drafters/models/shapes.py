"""Shapes of drafts from a model: which tokens come below the nodes of a level.

A shape expands a level at a time, since a level costs one pass of the draft model. What it decides before a token is
drawn may depend on q, on the budget and on earlier tokens, never on the token itself: dropping or adding places after a
look at what was drawn would bias the output.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from speculant.core.drafter import Budget
from speculant.core.engine import MAX_NODES
from speculant.core.errors import UsageError
from speculant.core.tree import DraftTree, Float64
from speculant.drafters.models.tree_acceptance import LevelAcceptance, LevelGains

WIDTHS = ((0.3, 7), (0.6, 5), (0.8, 3), (1.0, 1))  # at most this probability: so many candidates
WIDE = 32  # nodes of a draft above which it may be wider
MAX_PASSES = 64  # of the draft model in a round


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The nodes that a shape may expand.

    Attributes:
        depth: of the nodes to come, 1 below the root.
        q: Float32[F, V], the draft model's distribution after each node, warped where the target samples.
        weights: the joint probability of each node.
        room: how many nodes the budget still allows.
        levels: how many more levels may be grown, this one included.
        trees: whether nodes may have siblings; else only the first candidate is used.
        sampled: whether tokens are drawn from q; else the most probable ones are chosen.
        generator: the round's random stream.
        level_price, node_price: what a further level, and a further node, has to gain; see `core.drafter.Budget`.
    """

    depth: int
    q: Tensor
    weights: Sequence[float]
    room: int
    levels: int
    trees: bool
    sampled: bool
    generator: torch.Generator
    level_price: float = 0.0
    node_price: float = 0.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node to come: the place of its parent in the level, its token, and the token's probability."""

    parent: int
    token: int
    probability: float


@dataclass(frozen=True, slots=True)
class GrowthPlan:
    """How a draft of the most probable paths grows, for code that grows one whole.

    Attributes:
        levels: at most.
        top_k: candidates of each node that is expanded.
        expanded: nodes that a level expands.
        nodes: of the draft.
        min_probability: joint probability below which no node is expanded.
        level_price: what a further level has to gain.
        row_price: what a further node that the same level expands has to gain.
        ratios: of levels 2, 3, ...: the tokens that one gains by the joint probability of the nodes that it expands.
        confidence: probability of its own below which no node is expanded.
    """

    levels: int
    top_k: int
    expanded: int
    nodes: int
    min_probability: float
    level_price: float
    row_price: float
    ratios: Sequence[float]
    confidence: float = 0.0


class Shape(Protocol):
    """How drafts grow. `choosing` shapes take the most probable tokens, also where the target samples.

    Attributes:
        drawn: how siblings are drawn.
        choosing: whether tokens are always chosen.
        passes: how many levels are grown at most.
        extended: of levels 2, 3, ... of the last draft: the joint probability of all nodes that it extended.
    """

    drawn: Literal["iid", "distinct"]
    choosing: bool
    passes: int
    extended: Sequence[float] = ()

    @abstractmethod
    def expand(self, level: Level) -> list[Candidate]:
        """Return the nodes of the next level, those of one parent in the order in which they were drawn."""

    def select(self, weights: Sequence[float]) -> list[int]:
        """Return which of the new nodes the next level may grow from, given their joint probabilities."""
        return list(range(len(weights)))

    def plan(self, budget: Budget, levels: int, *, trees: bool) -> GrowthPlan | None:
        """Return how drafts within a budget and of so many levels grow; None where that is not planned beforehand."""
        return None

    def take_levels(self, extended: Sequence[float]) -> None:
        """Take the joint probabilities of what levels 2, 3, ... extended of a draft that was grown by a plan."""
        return

    def learn(self, draft: DraftTree, path: Sequence[int]) -> None:
        """Learn from the last draft, which has nodes, and the accepted ones."""
        return

    def forecast(self, nodes: int) -> Float64 | None:
        """Return what drafts of up to `nodes` nodes are expected to gain, see `core.drafter.Session.forecast`."""
        return None


class Chain(Shape):
    """One token a level, until the stop rule ends it."""

    drawn: Literal["iid", "distinct"] = "iid"
    choosing = False
    passes = MAX_PASSES

    def __init__(
        self, acceptance: LevelAcceptance, stop: str = "none", threshold: float | None = None, length: int = 5
    ) -> None:
        """Take the stop rule.

        Args:
            acceptance: shared by all requests.
            stop: "none" (the length is the budget's, which follows measured acceptance and cost), "fixed",
                "heuristic" (transformers' schedule: two more after a draft that was accepted whole, else one less),
                "confidence" or "entropy".
            threshold: "confidence" stops where no token has this probability, 0.4 by default; "entropy" where the lower
                bound of acceptance, 1 - sqrt(0.2 H(q)) (AdaEDL: Agrawal et al. 2024, arXiv 2410.18351), is below it,
                0.3 by default. SVIP (Zhang et al. 2024, arXiv 2411.18462) tests the same quantity.
            length: tokens of a fixed draft, and of the first one of the schedule.
        """
        if stop not in ("none", "fixed", "heuristic", "confidence", "entropy"):
            raise UsageError(f"stop must be none, fixed, heuristic, confidence or entropy, not {stop!r}.")
        if threshold is not None and stop not in ("confidence", "entropy"):
            raise UsageError(f"stop={stop} has no threshold.")
        if threshold is not None and not 0 <= threshold <= 1:
            raise UsageError(f"threshold must be from 0 to 1, not {threshold}.")
        if length < 1:
            raise UsageError(f"length must be at least 1, not {length}.")
        self._acceptance, self._stop, self._threshold, self._length = acceptance, stop, threshold, length

    def forecast(self, nodes: int) -> Float64:
        return self._acceptance.chain_gains(nodes)

    def expand(self, level: Level) -> list[Candidate]:
        if level.depth > 1 and self._stops(level):
            return []
        return draw_below(level, 0, 1, distinct=False)

    def _stops(self, level: Level) -> bool:
        if self._stop in ("fixed", "heuristic"):
            return level.depth > self._length
        if self._stop == "confidence":
            return float(level.q[0].max()) < (0.4 if self._threshold is None else self._threshold)
        if self._stop == "entropy":
            bound = 1 - math.sqrt(0.2 * float(torch.special.entr(level.q[0]).sum()))
            return bound < (0.3 if self._threshold is None else self._threshold)
        return False

    def learn(self, draft: DraftTree, path: Sequence[int]) -> None:
        self._acceptance.observe(len(draft), len(path))
        if self._stop == "heuristic":
            whole = len(path) == draft.depths().max()
            self._length = min(MAX_PASSES, self._length + 2) if whole else max(1, self._length - 1)


class BestFirst(Shape):
    """The most probable paths: each level expands the best nodes so far, and the best of all become the draft.

    OPT-Tree (Wang et al., TACL 2025, arXiv 2406.17276) and EAGLE-2 (Li et al. 2024, arXiv 2406.16858), with any draft
    model. Where no path is as probable as `min_probability` any more, the tree ends.

    The tree also ends where the next level is not expected to gain what its time is worth elsewhere, and nodes that
    cannot be in the draft are not expanded: those less probable than as many others as the budget allows, or than pays
    for verifying a node. So a tree is a chain where nodes are expensive to verify, and wide where they are not.
    """

    drawn: Literal["iid", "distinct"] = "iid"
    choosing = True

    def __init__(
        self,
        gains: LevelGains,
        *,
        depth: int,
        top_k: int,
        min_probability: float,
        max_nodes: int = MAX_NODES,
        expanded: int | None = None,
        wide: int | None = None,
    ) -> None:
        """Take the limits.

        Args:
            gains: of levels, shared by all requests.
            depth: passes of the draft model per round.
            top_k: nodes that a level expands, and candidates of each.
            min_probability: joint probability below which no node is expanded.
            max_nodes: of a draft.
            expanded: nodes that a level expands, if not `top_k`.
            wide: `top_k` of drafts of more than `WIDE` nodes, if it is another one there.
        """
        if not (1 <= depth <= MAX_PASSES and 1 <= top_k <= check_max(max_nodes) and 0 <= min_probability < 1):
            raise UsageError(f"depth is 1 to {MAX_PASSES}, top_k 1 to {max_nodes}, least from 0 to below 1.")
        self.passes, self._top_k, self._min_probability = depth, top_k, min_probability
        self._expanded, self._wide = expanded, top_k if wide is None else wide
        self._gains = gains
        self.extended = []
        self._level: Level | None = None  # that was expanded last
        self._weights: list[float] = []  # of all nodes before it

    def expand(self, level: Level) -> list[Candidate]:
        if level.depth == 1:
            self._weights, self.extended = [], []
        self._level = level
        topk = level.q.topk(min(self._width(level.room), level.q.shape[1]))
        return [
            Candidate(place, token, p)
            for place, (tokens, values) in enumerate(zip(topk.indices.tolist(), topk.values.tolist(), strict=True))
            for token, p in zip(tokens, values, strict=True)
        ]

    def select(self, weights: Sequence[float]) -> list[int]:
        level = self._level
        assert level is not None
        self._weights += weights
        room = sorted(self._weights, reverse=True)[level.room :]
        min_probability = max(self._min_probability, level.node_price, room[0] if room else 0.0)
        expanded = self._width(level.room) if self._expanded is None else self._expanded
        best = sorted(range(len(weights)), key=lambda place: -weights[place])[:expanded]
        found = [place for place in best if weights[place] > min_probability]
        extended = sum(weights[place] for place in found)
        if extended * self._gains.ratios(level.depth)[-1] <= level.level_price:
            return []
        self.extended = [*self.extended, extended]
        return found

    def plan(self, budget: Budget, levels: int, *, trees: bool) -> GrowthPlan | None:
        ratios = self._gains.ratios(levels)
        min_probability, top_k = (
            max(self._min_probability, budget.node_price),
            self._width(budget.nodes) if trees else 1,
        )
        expanded = (top_k if self._expanded is None else self._expanded) if trees else 1
        return GrowthPlan(levels, top_k, expanded, budget.nodes, min_probability, budget.level_price, 0.0, ratios)

    def _width(self, nodes: int) -> int:
        """Return how many candidates each node of a draft of so many nodes gets."""
        return self._wide if nodes > WIDE else self._top_k

    def take_levels(self, extended: Sequence[float]) -> None:
        self.extended = extended

    def forecast(self, nodes: int) -> Float64:
        return np.empty(0)  # it ends by itself where a level does not pay

    def learn(self, draft: DraftTree, path: Sequence[int]) -> None:
        self._gains.observe(self.extended, len(path))


def check_max(max_nodes: int) -> int:
    """Return the most nodes of a draft, a setting of methods that draft with a model or a head.

    Raises:
        UsageError: it is below 1.
    """
    if max_nodes < 1:
        raise UsageError(f"max_nodes must be 1 or more, not {max_nodes}.")
    return max_nodes


def width_at(confidence: float) -> int:
    """Return how many candidates a place gets whose most probable token has this probability.

    CaPE (Du et al., ICML 2024, arXiv 2402.02082): 7, 5, 3 or 1 up to 0.3, 0.6, 0.8 or 1.
    """
    return next((count for bound, count in WIDTHS if confidence <= bound), 1)


def draw_below(level: Level, place: int, count: int, *, distinct: bool) -> list[Candidate]:
    """Return `count` candidates below a node, fewer if q has fewer: drawn from q, or else the most probable ones."""
    q = level.q[place]
    if count < 1:
        return []
    if not level.sampled:
        topk = q.topk(min(count, len(q)))
        found = zip(topk.indices.tolist(), topk.values.tolist(), strict=True)
        return [Candidate(place, token, p) for token, p in found]
    if distinct:
        count = min(count, int((q > 0).sum()))
    tokens = torch.multinomial(q.cpu(), count, replacement=not distinct, generator=level.generator)
    return [Candidate(place, int(token), float(q[token])) for token in tokens]
