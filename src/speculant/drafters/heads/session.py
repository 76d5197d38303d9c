"""Sessions of a head, whose deterministic drafts are grown whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from speculant.core.drafter import Budget, SessionRequest
from speculant.core.tree import DraftTree, Int32
from speculant.drafters.copying.context import heaviest_first
from speculant.drafters.heads.calibration import Calibration
from speculant.drafters.heads.step import GrownDraft
from speculant.drafters.heads.text import HeadText, grow_whole
from speculant.drafters.models.level_session import LevelSession
from speculant.drafters.models.shapes import GrowthPlan, Shape

_TOP_K, _EXTENDED = 3, 2  # maximum candidates per node, and nodes extended per level, in drafts of automatic size


class HeadTextSession(LevelSession):
    """A `LevelSession` that starts afresh after pauses."""

    text: HeadText

    def follow(self, tokens: Int32) -> None:
        self.text.follow(tokens.tolist())
        self._round += len(tokens)


class HeadSession(HeadTextSession):
    """Session of one request; see `LevelSession`."""

    def __init__(self, text: HeadText, start: SessionRequest, shape: Shape, calibration: Calibration) -> None:
        """Start a request; all requests share the calibration."""
        super().__init__(text, start, shape)
        self._calibration, self._wide_levels = calibration, 0.0  # extra time of further rows in a level, in levels
        own = start.sampling
        # A temperature alone does not reorder tokens; filters such as top-k are left to PyTorch.
        self._temperature = own.temperature or 1.0
        self._uncut = not own.temperature or (own.top_k is None and own.top_p is None and own.min_p is None)

    def propose(self, budget: Budget) -> DraftTree:
        self._wide_levels = 0.0
        [draft] = grow_whole_together([self], [budget])
        return super().propose(budget) if draft is None else draft

    @property
    def levels(self) -> float:
        """Time of the last draft, as an equivalent number of levels with one row."""
        return 1 + len(self._shape.extended) + self._wide_levels

    @property
    def temperature(self) -> float:
        """Temperature for the probabilities of deterministic drafts."""
        return self._temperature * self._calibration.temperature

    def sharpen(self, q: Tensor) -> Tensor:
        found = q.pow(1 / self._calibration.temperature)
        return found / found.sum(-1, keepdim=True)

    def learn(self, drafted: DraftTree, path: Sequence[int]) -> None:
        super().learn(drafted, path)
        if drafted.proposal is None:
            self._calibration.observe(drafted, np.array(path, np.int64))

    def take_grown(self, grown: GrownDraft, plan: GrowthPlan, budget: Budget) -> DraftTree:
        """Return the draft of the most probable candidates within a budget."""
        self._shape.take_levels(grown.extended)
        if budget.level_price:  # every row yields `top_k` candidates; those of the root needed no row
            rows = len(grown.tokens) // plan.top_k - 1
            self._wide_levels = (self.text.row_share or 0.0) * max(0, rows - len(grown.extended))
        draft = DraftTree.trusted(*heaviest_first(grown.tokens, grown.parents, grown.weights, budget.nodes))
        return draft.with_levels(self.levels)

    def plan(self, budget: Budget) -> GrowthPlan | None:
        """Return how a deterministic draft grows; None if drafts are drawn or do not follow a plan."""
        levels = min(budget.nodes, budget.depth, self.text.depth, self._shape.passes)
        if levels < 1 or not self._shape.choosing:
            return None
        self._trees = budget.trees and self.text.trees
        plan = self._shape.plan(budget, levels, trees=self._trees)
        if plan is not None and plan.top_k > 1 and not self._uncut:
            return None  # chains use only the best tokens, which filters never remove
        if plan is None or not budget.level_price or (share := self.text.row_share) is None:
            return plan
        row_price = budget.level_price * share
        top_k, expanded = min(plan.top_k, _TOP_K), min(plan.expanded, _EXTENDED)
        return replace(plan, top_k=top_k, expanded=expanded, row_price=row_price)


def grow_whole_together(sessions: Sequence[LevelSession], budgets: Sequence[Budget]) -> list[DraftTree | None]:
    """Return the drafts of texts of one head that can be grown whole; None for those that grow level by level."""
    drafts: list[DraftTree | None] = [None] * len(sessions)
    planned = dict[int, tuple[HeadSession, GrowthPlan]]()
    for place, (session, budget) in enumerate(zip(sessions, budgets, strict=True)):
        plan = session.plan(budget) if isinstance(session, HeadSession) else None
        if plan is not None and isinstance(session, HeadSession):
            planned[place] = session, plan
    if planned:
        asked = [(session.text, plan, session.temperature) for session, plan in planned.values()]
        for (place, (session, plan)), grown in zip(planned.items(), grow_whole(*zip(*asked, strict=True)), strict=True):
            drafts[place] = None if grown is None else session.take_grown(grown, plan, budgets[place])
    return drafts
