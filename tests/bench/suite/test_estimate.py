"""How long a benchmark will take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from speculant.bench.suite.estimate import Rate, TimeEstimate
from speculant.bench.suite.tasks import TaskRequest
from speculant.bench.systems.system import RequestOutcome


class Turns:
    """An item of two turns, each of ten prompt tokens and five new ones."""

    category = "c"
    turns = 2

    def request(self, answers: Sequence[Sequence[int]]) -> TaskRequest | None:
        """Return the next request."""
        return TaskRequest(np.arange(10, dtype=np.int32), 5) if len(answers) < self.turns else None


ITEMS = [Turns(), Turns(), Turns()]


def test_a_rate_is_measured_per_token() -> None:
    """Seconds until the first token belong to the prompt, the rest to the tokens after it."""
    outcome = RequestOutcome(
        ids=[1] * 5, seconds=3.0, prefill_seconds=1.0, prefill_tokens=1, rounds=4, accepted_by_depth=[]
    )
    assert Rate.measure(outcome, 10, batched=True) == Rate(0.1, 0.5, True)


def test_nothing_is_estimated_before_a_measurement() -> None:
    """A guess would be worse than none."""
    assert TimeEstimate().seconds([(ITEMS, 1)]) is None


def test_finished_items_correct_the_estimate() -> None:
    """The warm-up's rates predict two turns per item; the ratio of measured to predicted scales what is left."""
    estimate = TimeEstimate()
    estimate.calibrate([Rate(0.1, 0.5, True), Rate(0.0, 0.5, False)])
    assert estimate.seconds([(ITEMS, 1)]) == pytest.approx(3 * 2 * (10 * 0.1 + 5 * 1.0))
    assert estimate.seconds([(ITEMS, 5)]) == pytest.approx(3 * 2 * (10 * 0.1 + 5 * 0.5 / 5))
    estimate.finish(ITEMS[:1], 1, 6.0)
    assert estimate.seconds([(ITEMS[1:], 1)]) == pytest.approx(2 * 6.0)
    assert estimate.seconds([]) == 0
