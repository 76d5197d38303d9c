"""Chains that end where the drafter is unsure.

The token after which a chain ends is still drafted, since its distribution was paid for. The decision looks at q
alone, never at what is drawn from it, so that it is lossless where the target samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from speculant.core.drafter import Budget
from speculant.core.errors import UsageError
from speculant.core.tree import DraftTree, Float64
from speculant.drafters.models.shapes import MAX_PASSES, Candidate, GrowthPlan, Level, Shape, draw_below, width_at
from speculant.drafters.models.tree_acceptance import LevelAcceptance

SMOOTHING = 0.5  # of the share of drafted tokens that are accepted
ENOUGH = 0.9  # of them
STEP = 0.01  # of the threshold
INERTIA = 0.9  # of the threshold


class SureChain(Shape):
    """One token a level, until no token has a probability of `threshold`.

    With `adaptive`, the threshold follows what is accepted as in Draft & Verify (Zhang et al., ACL 2024, arXiv
    2309.08168): m = 0.5 m + 0.5 accepted / drafted; the threshold moves a tenth of the way to itself + 0.01 if
    m < 0.9, else to itself - 0.01, unless the draft was as long as it may be. It stays from 0 to 1 here. The authors'
    code compares the probability of the token that it has drawn; greedily that is the same.
    """

    def __init__(
        self,
        acceptance: LevelAcceptance,
        *,
        threshold: float,
        longest: int,
        adaptive: bool,
        wide: bool = False,
        choosing: bool = False,
    ) -> None:
        """Take the rule.

        Args:
            acceptance: shared by all requests.
            threshold: from 0 (chains end by the budget) to 1.
            longest: tokens of a draft.
            adaptive: whether the threshold follows what is accepted.
            wide: whether the token after which a chain ends has siblings, as many as there is room for.
            choosing: whether tokens are chosen where the target samples, too.
        """
        if not 0 <= threshold <= 1:
            raise UsageError(f"threshold must be from 0 to 1, not {threshold}.")
        if not 1 <= longest <= MAX_PASSES:
            raise UsageError(f"longest must be from 1 to {MAX_PASSES}, not {longest}.")
        self.choosing = choosing
        self.passes, self._acceptance, self._threshold, self._adaptive = longest, acceptance, threshold, adaptive
        self._matched = 0.0
        self._sure, self._wide = True, wide
        self.drawn: Literal["iid", "distinct"] = "distinct" if wide else "iid"

    def expand(self, level: Level) -> list[Candidate]:
        self.extended = [] if level.depth == 1 else [*self.extended, level.weights[0]]
        confidence = float(level.q[0].max())
        self._sure = confidence >= self._threshold
        count = min(level.room, width_at(confidence)) if self._wide and level.trees and not self._sure else 1
        return draw_below(level, 0, count, distinct=self._wide)

    def select(self, weights: Sequence[float]) -> list[int]:
        return [0] if self._sure and weights else []

    def plan(self, budget: Budget, levels: int, *, trees: bool) -> GrowthPlan | None:
        if not self.choosing:
            return None
        return GrowthPlan(levels, 1, 1, levels, 0.0, 0.0, 0.0, [1.0] * levels, self._threshold)

    def take_levels(self, extended: Sequence[float]) -> None:
        self.extended = extended

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
