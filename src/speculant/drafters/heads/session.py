"""One request of a head: drafts of chosen tokens are grown by one call of the target's code, where it has some."""

from __future__ import annotations

from dataclasses import replace

from speculant.core.drafter import Budget, Start
from speculant.core.tree import DraftTree
from speculant.drafters.heads.text import HeadText
from speculant.drafters.models.level_session import LevelSession, heaviest
from speculant.drafters.models.shapes import GrowthPlan, Shape

_CHEAP = 3  # rows that a level of automatic size has at most: more take longer than they gain, measured on CPUs


class HeadSession(LevelSession):
    """See `LevelSession`."""

    text: HeadText

    def __init__(self, text: HeadText, start: Start, shape: Shape) -> None:
        super().__init__(text, start, shape)
        own = start.sampling
        # A temperature alone changes no order of tokens; what cuts the distribution is left to PyTorch.
        self._temperature = own.temperature or 1.0
        self._uncut = not own.temperature or (own.top_k is None and own.top_p is None and own.min_p is None)

    def propose(self, budget: Budget) -> DraftTree:
        plan = self._plan(budget)
        grown = None if plan is None else self.text.grow_whole(plan, self._temperature)
        if plan is None or grown is None:
            return super().propose(budget)
        self._shape.take_levels(grown.levels)
        return heaviest(grown.tokens, grown.parents, grown.weights, budget.nodes)

    def _plan(self, budget: Budget) -> GrowthPlan | None:
        """Return how a draft of chosen tokens grows; None where drafts are drawn or do not follow a plan."""
        levels = min(budget.nodes, budget.depth, self.text.depth, self._shape.passes)
        if levels < 1 or not self._uncut or not self._shape.choosing:
            return None
        self._trees = budget.trees and self.text.trees
        plan = self._shape.plan(budget, levels, trees=self._trees)
        if plan is None or not budget.level_price:
            return plan
        return replace(plan, top_k=min(plan.top_k, _CHEAP))
