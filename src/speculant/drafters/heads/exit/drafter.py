"""An early exit drafts: chains that end where the adapter is unsure, and trees.

Double early exiting (Liu et al. 2024, arXiv 2404.18911, section 3.3): drafting leaves the target behind its first
layers, and ends where the adapter's best token has no probability of `threshold`. The authors still draft that token.
Where tokens are chosen it is left out here: verification goes on from the rows of the first layers, and a token that
was not read would need a pass of theirs by itself, which takes longer than so improbable a token gains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from speculant.core.drafter import Budget
from speculant.core.errors import UsageError
from speculant.core.tree import DraftTree, Float64
from speculant.drafters.heads.drafter import HeadDrafter, HeadSettings, LoadedHead
from speculant.drafters.layers.stopping import SureChain
from speculant.drafters.models.shapes import Candidate, GrowthPlan, Level, Shape, draw_below
from speculant.drafters.models.tree_acceptance import LevelGains


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitSettings(HeadSettings):
    """Settings of `kangaroo`; see `HeadSettings`.

    Attributes:
        tree: "sure" for a chain that ends where the adapter is unsure, "chain" or "dynamic".
        depth: tokens of a chain, or levels of a tree, at most; the authors draft 6.
        threshold: a chain ends where no token has this probability; 0.6 for the authors' models.
    """

    tree: str = "sure"
    depth: int = 6
    threshold: float = 0.2


class ExitDrafter(HeadDrafter):
    """See `ExitSettings`."""

    def __init__(self, head: LoadedHead, *, settings: ExitSettings | None = None, sampled: bool = False) -> None:
        """Take the head; see `HeadDrafter`."""
        self._chosen = settings or ExitSettings()
        super().__init__(head, settings=self._chosen, sampled=sampled)

    def _shape(self) -> Shape:
        s = self._chosen
        if s.tree == "static":
            raise UsageError("tree must be sure, chain or dynamic for an early exit, not 'static'.")
        if s.tree != "sure":
            return super()._shape()
        sure = SureChain(self._acceptance, threshold=s.threshold, longest=s.depth, adaptive=False)
        return sure if self._sampled else PaidChain(self._gains, threshold=s.threshold, longest=s.depth)


class PaidChain(Shape):
    """The most probable token of each level, as long as it is sure and pays for being read.

    The level that reads a token gains the token, so its price is compared with the token's joint probability, corrected
    by what such tokens gained of late.
    """

    drawn: Literal["iid", "distinct"] = "iid"
    choosing = True

    def __init__(self, gains: LevelGains, *, threshold: float, longest: int) -> None:
        """Take the rule; a `SureChain` was made with the same values before.

        Args:
            gains: of levels, shared by all requests.
            threshold: probability of its own below which no token is drafted.
            longest: tokens of a draft.
        """
        self.passes, self._gains, self._threshold = longest, gains, threshold

    def expand(self, level: Level) -> list[Candidate]:
        self.extended = [] if level.depth == 1 else [*self.extended, level.weights[0]]
        [best] = draw_below(level, 0, 1, distinct=False)
        gained = level.weights[0] * best.probability * self._gains.ratios(level.depth)[-1]
        return [best] if best.probability >= self._threshold and gained > level.level_price else []

    def plan(self, budget: Budget, levels: int, *, trees: bool) -> GrowthPlan | None:
        ratios = self._gains.ratios(levels)
        return GrowthPlan(levels, 1, 1, levels, 0.0, budget.level_price, 0.0, ratios, self._threshold)

    def take_levels(self, extended: Sequence[float]) -> None:
        self.extended = extended

    def forecast(self, nodes: int) -> Float64:
        return np.empty(0)  # it ends by itself where a level does not pay

    def learn(self, draft: DraftTree, path: Sequence[int]) -> None:
        self._gains.observe(draft.weights.tolist(), len(path) + 1)
