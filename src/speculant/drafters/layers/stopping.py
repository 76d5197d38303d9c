"""Chains that end where the drafter is unsure.

`ConfidenceChain` still drafts the token after which a chain ends, since its distribution has been computed. It decides
by q alone, never by the token drawn from q, so it is lossless when the target samples. `PayingChain` drafts the most
probable tokens only, and leaves out the unsure one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from speculant.core.drafter import Budget
from speculant.core.errors import UsageError
from speculant.core.tree import DraftTree, Float64
from speculant.drafters.models.shapes import MAX_PASSES, Candidate, GrowthPlan, Level, Shape, draw_below, width_at
from speculant.drafters.models.tree_acceptance import LevelAcceptance, LevelGains

SMOOTHING = 0.5  # decay of the share of drafted tokens that are accepted
ENOUGH = 0.9  # target for that share
STEP = 0.01  # step of the threshold
INERTIA = 0.9  # decay of the threshold


def check_chain(threshold: float, longest: int) -> None:
    """Check the settings of a chain.

    Raises:
        UsageError: one is out of range.
    """
    if not 0 <= threshold <= 1:
        raise UsageError(f"threshold must be from 0 to 1, not {threshold}.")
    if not 1 <= longest <= MAX_PASSES:
        raise UsageError(f"longest must be from 1 to {MAX_PASSES}, not {longest}.")


class ConfidenceChain(Shape):
    """One token per level, until no token reaches the probability `threshold`.

    With `adaptive`, the threshold follows acceptance as in Draft & Verify (Zhang et al., ACL 2024, arXiv 2309.08168):
    m = 0.5 m + 0.5 accepted / drafted; the threshold moves a tenth of the way to itself + 0.01 if m < 0.9, otherwise to
    itself - 0.01, unless the draft had its maximum length. Here it is kept between 0 and 1. The authors' code compares
    the probability of the drawn token; for greedy decoding this is the same.
    """

    choosing = False

    def __init__(
        self, acceptance: LevelAcceptance, *, threshold: float, longest: int, adaptive: bool, wide: bool = False
    ) -> None:
        """Create the shape.

        Args:
            acceptance: acceptance by level, shared by all requests.
            threshold: from 0 (chains end by the budget) to 1.
            longest: maximum tokens per draft.
            adaptive: whether the threshold follows acceptance.
            wide: whether the token after which a chain ends has siblings, as many as there is room for.
        """
        check_chain(threshold, longest)
        self.passes, self._acceptance, self._threshold, self._adaptive = longest, acceptance, threshold, adaptive
        self._matched = 0.0
        self._sure, self._wide = True, wide
        self.drawn: Literal["iid", "distinct"] = "distinct" if wide else "iid"

    def expand(self, level: Level) -> list[Candidate]:
        confidence = float(level.q[0].max())
        self._sure = confidence >= self._threshold
        count = min(level.room, width_at(confidence)) if self._wide and level.trees and not self._sure else 1
        return draw_below(level, 0, count, distinct=self._wide)

    def select(self, weights: Sequence[float]) -> list[int]:
        return [0] if self._sure and weights else []

    def forecast(self, nodes: int) -> Float64:
        return self._acceptance.chain_gains(min(nodes, self.passes))

    def learn(self, draft: DraftTree, path: Sequence[int]) -> None:
        drafted = int(draft.depths().max())
        self._acceptance.observe(drafted, len(path))
        if not self._adaptive:
            return
        self._matched = SMOOTHING * self._matched + (1 - SMOOTHING) * len(path) / drafted
        goal = self._threshold
        if self._matched < ENOUGH:
            goal += STEP
        elif drafted < self.passes:
            goal -= STEP
        self._threshold = min(1.0, max(0.0, INERTIA * self._threshold + (1 - INERTIA) * goal))


class PayingChain(Shape):
    """The most probable token of each level, as long as it is sure and worth reading.

    For drafters whose next level reads the token: the level then gains that token, so its price is compared with the
    token's joint probability, corrected by the recent gain of such levels.
    """

    drawn: Literal["iid", "distinct"] = "iid"
    choosing = True

    def __init__(self, gains: LevelGains, *, threshold: float, longest: int) -> None:
        """Create the shape.

        Args:
            gains: gains of levels, shared by all requests.
            threshold: minimum probability of a drafted token, from 0 to 1.
            longest: maximum tokens per draft.
        """
        check_chain(threshold, longest)
        self.passes, self._gains, self._threshold = longest, gains, threshold

    def expand(self, level: Level) -> list[Candidate]:
        self.extended = [] if level.depth == 1 else [*self.extended, level.weights[0]]
        [best] = draw_below(level, 0, 1, distinct=False)
        gained = level.weights[0] * best.probability * self._gains.ratios(level.depth)[-1]
        return [best] if best.probability >= self._threshold and gained > level.level_price else []

    def plan(self, budget: Budget, levels: int, *, trees: bool) -> GrowthPlan | None:
        ratios = self._gains.ratios(levels)
        return GrowthPlan(
            levels=levels,
            nodes=levels,
            ratios=ratios,
            level_price=budget.level_price,
            confidence=self._threshold,
            reads_last=True,
        )

    def take_levels(self, extended: Sequence[float]) -> None:
        self.extended = extended

    def forecast(self, nodes: int) -> Float64:
        return np.empty(0)  # the chain ends by itself where a level does not pay

    def learn(self, draft: DraftTree, path: Sequence[int]) -> None:
        self._gains.observe(draft.weights.tolist(), len(path) + 1)
