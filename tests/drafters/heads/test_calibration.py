"""The temperature of a head follows how often its best candidates are right."""

from __future__ import annotations

import numpy as np
import pytest

from speculant.core.tree import DraftTree
from speculant.drafters.heads.calibration import Calibration, excess


@pytest.mark.parametrize(("right", "sharper"), [(0.9, True), (0.2, False)])
def test_the_temperature_follows_what_is_right(right: float, sharper: bool) -> None:
    """Guards heads that are less sure than they could be, or more: the best candidate is made as probable as it is."""
    calibration, random = Calibration(), np.random.default_rng(0)
    for _ in range(800):
        q = 0.5**calibration.temperature  # a head's, sharper at lower temperatures
        draft = DraftTree.from_paths([[1], [3]], [q, q / 2])
        calibration.observe(draft, np.array([0] if random.random() < right else [], np.int64))
    assert (calibration.temperature < 0.7) is sharper
    assert 0.25 <= calibration.temperature <= 2


def test_what_counts_are_best_candidates() -> None:
    """Guards the comparison: one candidate below the root and each accepted node, the first, by its own probability."""
    draft = DraftTree.from_paths([[1, 2, 3], [1, 4], [5]], [0.4, 0.2, 0.3])
    parents, weights = draft.parents, draft.weights
    below = float(weights[1] / weights[0])
    for path, expected in (
        ([], -float(weights[0])),
        ([0], 1 - float(weights[0]) - below),
        ([0, 3], 1 - float(weights[0]) - below),
        ([4], -float(weights[0])),
    ):
        assert excess(parents, weights, np.array(path, np.int64)) == pytest.approx(expected, rel=1e-5)
    assert excess(parents[:0], weights[:0], np.array([], np.int64)) == 0
