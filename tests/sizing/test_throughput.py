"""Throughput of late, the price of time."""

from __future__ import annotations

import pytest

from speculant.sizing.throughput import Throughput


def test_rate() -> None:
    """The rate is of late, never below plain decoding's, and a request begins with little of that of others."""
    shared = Throughput()
    assert shared.rate(1.0) == 1
    for _ in range(300):
        shared.observe(3, 1.5)
    assert shared.rate(1.0) == pytest.approx(2)
    after = Throughput(shared)
    assert after.rate(1.0) == pytest.approx(2)
    for _ in range(100):
        after.observe(1, 2.0)
    assert after.rate(1.0) == 1
    assert shared.rate(1.0) == pytest.approx(2)
