"""Isotonic fits, by hand and against what they are for."""

from __future__ import annotations

import numpy as np
import pytest

from speculant.sizing.isotonic import falling_fit, rising_fit


def test_rising_fit() -> None:
    """Neighbours out of order become their mean, weighted by their samples."""
    values, counts = np.array([1.0, 3.0, 2.0, 4.0]), np.array([1, 1, 3, 1])
    assert rising_fit(values, counts).tolist() == [1.0, 2.25, 2.25, 4.0]


def test_falling_fit() -> None:
    """The fit never rises, keeps the sum, and is the slope of the least concave curve above the sums."""
    assert falling_fit(np.array([1.0, 0.2, 0.6, 0.4])) == pytest.approx([1.0, 0.4, 0.4, 0.4])
    source = np.random.default_rng(1)
    for _ in range(50):
        values = source.random(source.integers(1, 20))
        fit = falling_fit(values)
        assert (np.diff(fit) <= 1e-12).all()
        assert fit.sum() == pytest.approx(values.sum())
        assert (np.cumsum(fit) >= np.cumsum(values) - 1e-12).all()


def test_a_best_number_found_with_the_fit_is_best_without_it() -> None:
    """Guards the choice of heads: where a straight price is taken off, the best sums of both are equal."""
    source = np.random.default_rng(2)
    for _ in range(50):
        values, price = source.random(12), 0.5
        sums = np.append(0, np.cumsum(values - price))
        best = int(np.argmax(np.append(0, np.cumsum(falling_fit(values) - price))))
        assert sums[best] == pytest.approx(sums.max())
