"""How far drafts may grow: by what they cost, and never beyond the curve."""

from __future__ import annotations

import numpy as np

from speculant.sizing.division import limit_growth


def test_drafts_grow_by_a_quarter_or_by_their_cost() -> None:
    """Guards steep curves, on which a draft grows slowly, and flat ones, on which it may double."""
    assert limit_growth(1 + 0.5 * np.arange(65), 0, 16.0) == 21
    assert limit_growth(np.ones(65), 0, 16.0) == 32


def test_more_texts_than_the_curve_has_rows_are_no_error() -> None:
    """Guards the compiled loop, which checks no bounds, in large batches."""
    assert limit_growth(np.arange(1.0, 9.0), 300, 16.0) == 21
