"""Sizes of drafts in a replay."""

from __future__ import annotations

import numpy as np
import pytest

from speculant.bench.replay.player import replay
from speculant.core.tree import DraftTree
from speculant.sizing.step_cost import StepCost

from scripted import Scripted, recording  # isort: skip


@pytest.mark.parametrize(("per_node", "least", "most"), [(2.0, 0.0, 0.3), (0.0, 2.0, 3.0)])
def test_automatic_sizes_follow_what_passes_cost(per_node: float, least: float, most: float) -> None:
    """Guards comparisons of methods as they are used: where rows are dear no draft pays, where they are free all do."""
    cost = StepCost(np.array([0.0, 64.0]), np.array([1.0, 1.0 + 64 * per_node]))
    drafter = Scripted(DraftTree.from_paths([[5, 5, 5]]))
    found = replay(drafter, [recording([5] * 300)] * 2, nodes="auto", cost=cost)
    assert found.drafting is not None
    assert least <= found.drafting.nodes.mean() <= most
    assert found.tokens == 600
