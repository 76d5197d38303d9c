"""Shapes of drafts from a model: which tokens are placed below the nodes of a level.

A shape expands one level at a time, since a level costs one pass of the draft model. Decisions made before a token is
drawn may depend on q, on the budget and on earlier tokens, but never on the token itself: dropping or adding nodes
after seeing what was drawn would bias the output.
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
from speculant.drafters.top_tokens import best_tokens

WIDTHS = ((0.3, 7), (0.6, 5), (0.8, 3), (1.0, 1))  # up to each probability, the number of candidates
STOPS = ("none", "fixed", "heuristic", "confidence", "joint", "entropy")  # rules that end chains
THRESHOLDS = {"confidence": 0.4, "joint": 0.1, "entropy": 0.3}  # defaults
WIDE = 32  # drafts with more nodes than this may be wider
MAX_PASSES = 64  # maximum passes of the draft model per round


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The nodes that a shape may expand.

    Attributes:
        depth: depth of the new nodes, 1 below the root.
        q: Float32[F, V], the draft model's distribution after each node, warped if the target samples.
        weights: joint probability of each node.
        room: number of nodes that the budget still allows.
        levels: number of levels that may still be grown, including this one.
        trees: whether nodes may have siblings; otherwise only the first candidate is used.
        sampled: whether tokens are drawn from q; otherwise the most probable ones are taken.
        generator: the round's random stream.
        level_price, node_price: minimum gain of a further level, and of a further node; see `core.drafter.Budget`.
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
    """A new node: the index of its parent in the level, its token, and the token's probability."""

    parent: int
    token: int
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthPlan:
    """How a draft of the most probable paths grows, for code that grows a whole draft at once.

    Attributes:
        levels: maximum number of levels.
        top_k: candidates per expanded node.
        expanded: maximum nodes expanded per level.
        nodes: maximum nodes per draft.
        ratios: for levels 2, 3, ..., tokens gained per joint probability of the nodes that the level expands.
        min_probability: minimum joint probability of a node that is expanded.
        level_price: minimum gain of a further level.
        row_price: minimum gain of a further node expanded in the same level.
        confidence: minimum probability of the node itself to be expanded.
        reads_last: whether candidates that are not expanded are left out of the draft.
    """

    levels: int
    top_k: int = 1
    expanded: int = 1
    nodes: int
    ratios: Sequence[float]
    min_probability: float = 0.0
    level_price: float = 0.0
    row_price: float = 0.0
    confidence: float = 0.0
    reads_last: bool = False


class Shape(Protocol):
    """How drafts grow. `choosing` shapes take the most probable tokens even if the target samples.

    Attributes:
        drawn: how siblings are drawn.
        choosing: whether tokens are always chosen.
        passes: maximum number of levels.
        extended: for levels 2, 3, ... of the last draft, the joint probability of all nodes that the level extended.
    """

    drawn: Literal["iid", "distinct"]
    choosing: bool
    passes: int
    extended: Sequence[float] = ()

    @abstractmethod
    def expand(self, level: Level) -> list[Candidate]:
        """Return the nodes of the next level; siblings are in the order in which they were drawn."""

    def select(self, weights: Sequence[float]) -> list[int]:
        """Return the indices of the new nodes that the next level may grow from, given their joint probabilities."""
        return list(range(len(weights)))

    def plan(self, budget: Budget, levels: int, *, trees: bool) -> GrowthPlan | None:
        """Return how drafts within a budget and `levels` levels grow; None if that cannot be planned in advance."""
        return None

    def take_levels(self, extended: Sequence[float]) -> None:
        """Set `extended` for a draft that was grown by a plan."""
        return

    def learn(self, draft: DraftTree, path: Sequence[int]) -> None:
        """Learn from the last draft, which has at least one node, and its accepted nodes."""
        return

    def forecast(self, nodes: int) -> Float64 | None:
        """Return the expected gains of drafts of up to `nodes` nodes, see `core.drafter.Session.forecast`."""
        return None


class Chain(Shape):
    """One token per level, until the stop rule ends the chain."""

    drawn: Literal["iid", "distinct"] = "iid"
    choosing = False
    passes = MAX_PASSES

    def __init__(
        self, acceptance: LevelAcceptance, stop: str = "none", threshold: float | None = None, length: int = 5
    ) -> None:
        """Set the stop rule.

        Args:
            acceptance: acceptance statistics shared by all requests.
            stop: "none" (the budget sets the length, which follows measured acceptance and cost), "fixed", "heuristic"
                (transformers' schedule: two more after a draft that was fully accepted, else one less), "confidence",
                "joint" or "entropy".
            threshold: "confidence" stops if no token reaches this probability, 0.4 by default; "joint" if the product
                of the highest probabilities since the root is below it, 0.1 by default; "entropy" if the lower bound
                of acceptance, 1 - sqrt(0.2 H(q)) (AdaEDL: Agrawal et al. 2024, arXiv 2410.18351), is below it, 0.3 by
                default. SVIP (Zhang et al. 2024, arXiv 2411.18462) tests the same quantity.
            length: tokens of a fixed draft, and of the first draft under "heuristic".
        """
        if stop not in STOPS:
            raise UsageError(f"stop must be {', '.join(STOPS[:-1])} or {STOPS[-1]}, not {stop!r}.")
        if threshold is not None and stop not in THRESHOLDS:
            raise UsageError(f"stop={stop} has no threshold.")
        if threshold is not None and not 0 <= threshold <= 1:
            raise UsageError(f"threshold must be from 0 to 1, not {threshold}.")
        if length < 1:
            raise UsageError(f"length must be at least 1, not {length}.")
        self._acceptance, self._stop, self._length = acceptance, stop, length
        self._threshold = THRESHOLDS.get(stop, 0.0) if threshold is None else threshold
        self._joint = 1.0  # product of the highest probabilities since the root

    def forecast(self, nodes: int) -> Float64:
        return self._acceptance.chain_gains(nodes)

    def expand(self, level: Level) -> list[Candidate]:
        if self._stops(level) and level.depth > 1:
            return []
        return draw_below(level, 0, 1, distinct=False)

    def _stops(self, level: Level) -> bool:
        if self._stop in ("fixed", "heuristic"):
            return level.depth > self._length
        if self._stop == "confidence":
            return float(level.q[0].max()) < self._threshold
        if self._stop == "joint":
            self._joint = float(level.q[0].max()) * (1.0 if level.depth == 1 else self._joint)
            return self._joint < self._threshold
        if self._stop == "entropy":
            return 1 - math.sqrt(0.2 * float(torch.special.entr(level.q[0]).sum())) < self._threshold
        return False

    def learn(self, draft: DraftTree, path: Sequence[int]) -> None:
        self._acceptance.observe(len(draft), len(path))
        if self._stop == "heuristic":
            whole = len(path) == draft.depths().max()
            self._length = min(MAX_PASSES, self._length + 2) if whole else max(1, self._length - 1)


class BestFirst(Shape):
    """The most probable paths: each level expands the best nodes so far, and the best of all become the draft.

    OPT-Tree (Wang et al., TACL 2025, arXiv 2406.17276) and EAGLE-2 (Li et al. 2024, arXiv 2406.16858), with any draft
    model. The tree ends when no path is as probable as `min_probability`.

    The tree also ends if the next level is not expected to gain what its time is worth elsewhere, and nodes that cannot
    be in the draft are not expanded: those less probable than as many others as the budget allows, or than what pays
    for verifying a node. So a tree is a chain if nodes are expensive to verify, and wide if they are cheap.
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
        """Set the limits.

        Args:
            gains: statistics of levels, shared by all requests.
            depth: maximum passes of the draft model per round.
            top_k: nodes expanded per level, and candidates per expanded node.
            min_probability: minimum joint probability of a node that is expanded.
            max_nodes: maximum nodes per draft.
            expanded: nodes expanded per level, if not `top_k`.
            wide: `top_k` for drafts of more than `WIDE` nodes, if different.
        """
        if not (1 <= depth <= MAX_PASSES and 1 <= top_k <= check_max(max_nodes) and 0 <= min_probability < 1):
            raise UsageError(
                f"depth must be from 1 to {MAX_PASSES}, top_k from 1 to {max_nodes} and min_probability from 0 to "
                "below 1."
            )
        self.passes, self._top_k, self._min_probability = depth, top_k, min_probability
        self._expanded, self._wide = expanded, top_k if wide is None else wide
        self._gains = gains
        self.extended = []
        self._level: Level | None = None  # the last expanded level
        self._weights: list[float] = []  # joint probabilities of all nodes so far

    def expand(self, level: Level) -> list[Candidate]:
        if level.depth == 1:
            self._weights, self.extended = [], []
        self._level = level
        best, ids = best_tokens(level.q, min(self._width(level.room), level.q.shape[1]))
        return [
            Candidate(place, token, p)
            for place, (tokens, values) in enumerate(zip(ids.tolist(), best.tolist(), strict=True))
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
        top_k = self._width(budget.nodes) if trees else 1
        return GrowthPlan(
            levels=levels,
            top_k=top_k,
            expanded=(top_k if self._expanded is None else self._expanded) if trees else 1,
            nodes=budget.nodes,
            ratios=ratios,
            min_probability=max(self._min_probability, budget.node_price),
            level_price=budget.level_price,
        )

    def _width(self, nodes: int) -> int:
        """Return the number of candidates per node in a draft of `nodes` nodes."""
        return self._wide if nodes > WIDE else self._top_k

    def take_levels(self, extended: Sequence[float]) -> None:
        self.extended = extended

    def forecast(self, nodes: int) -> Float64:
        return np.empty(0)  # the draft itself ends where a level does not pay off

    def learn(self, draft: DraftTree, path: Sequence[int]) -> None:
        self._gains.observe(self.extended, len(path))


def check_max(max_nodes: int) -> int:
    """Validate and return the maximum nodes per draft, a setting of methods that draft with a model or a head.

    Raises:
        UsageError: it is below 1.
    """
    if max_nodes < 1:
        raise UsageError(f"max_nodes must be 1 or more, not {max_nodes}.")
    return max_nodes


def width_at(confidence: float) -> int:
    """Return the number of candidates for a position whose most probable token has this probability.

    CaPE (Du et al., ICML 2024, arXiv 2402.02082): 7, 5, 3 or 1 up to 0.3, 0.6, 0.8 or 1.
    """
    return next((count for bound, count in WIDTHS if confidence <= bound), 1)


def draw_below(level: Level, place: int, count: int, *, distinct: bool) -> list[Candidate]:
    """Return `count` candidates below a node, or fewer if q has fewer: drawn from q, or the most probable ones."""
    q = level.q[place]
    if count < 1:
        return []
    if not level.sampled:
        best, ids = best_tokens(q[None], min(count, len(q)))
        return [Candidate(place, token, p) for token, p in zip(ids[0].tolist(), best[0].tolist(), strict=True)]
    if distinct:
        count = min(count, int((q > 0).sum()))
    tokens = torch.multinomial(q.cpu(), count, replacement=not distinct, generator=level.generator)
    return [Candidate(place, int(token), float(q[token])) for token in tokens]
