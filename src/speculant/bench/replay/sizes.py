"""Sizes of drafts in a replay: fixed, or chosen as decoding would choose them at the measured cost of passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from speculant.api.sizes import Sizes
from speculant.core.drafter import Drafter, Persistent
from speculant.core.tree import DraftTree
from speculant.core.verifier import Walk
from speculant.integrations.load import chain_budget, tree_budget
from speculant.options.drafting import AUTOMATIC, DraftingOptions
from speculant.sizing.contract import Sizing
from speculant.sizing.fixed import FixedSizing
from speculant.sizing.step_cost import StepCost


def size_drafts(
    drafter: Drafter, nodes: int | Literal["auto"], *, chain: bool, cost: StepCost | None, max_depth: int | None
) -> Callable[[], Sizing]:
    """Return what creates the sizing of each request.

    Args:
        drafter: the drafter.
        nodes: maximum nodes per draft; "auto" for the size that decoding would choose.
        chain: whether drafts are chains.
        cost: cost of target passes, which automatic sizes need.
        max_depth: maximum depth of a draft; None for as deep as the method drafts.

    Raises:
        ValueError: the cost is missing.
    """
    if isinstance(nodes, int):
        budget = chain_budget(nodes) if chain else tree_budget(nodes)
        depth = budget.depth if max_depth is None else min(budget.depth, max_depth)
        return lambda: FixedSizing(budget.nodes, depth=depth)
    if cost is None:
        raise ValueError('nodes="auto" needs the cost of passes')
    # Recordings hold no logits, from which nothing is learned, so no node is worth more than its acceptance.
    needs = replace(drafter.needs, top_k=0, max_nodes=min(drafter.needs.max_nodes, int(cost.nodes[-1])))
    learns = isinstance(drafter, Persistent)
    sizes = Sizes(DraftingOptions(nodes=AUTOMATIC, max_depth=max_depth), needs, known=None, learns=learns)
    return lambda: PricedSizing(sizes.of(1), cost)


class PricedSizing:
    """A sizing policy for which passes take as long as a measured curve says; drafting takes the time it takes."""

    def __init__(self, sizing: Sizing, cost: StepCost) -> None:
        self._sizing, self._end = sizing, int(cost.nodes[-1])
        self._seconds: list[float] = cost.of(np.arange(self._end + 1)).tolist()
        self.open, self.nodes, self.trim, self.reason = sizing.open, sizing.nodes, sizing.trim, sizing.reason

    def observe(
        self,
        states: Sequence[Any],
        drafts: Sequence[DraftTree],
        walks: Sequence[Walk],
        *,
        target_seconds: float,
        draft_seconds: float,
    ) -> None:
        """Learn from a round whose pass took what the curve says."""
        taken = self._seconds[min(self._end, sum(map(len, drafts)))]
        self._sizing.observe(states, drafts, walks, target_seconds=taken, draft_seconds=draft_seconds)
