"""What the texts of a round share of its drafting time."""

from __future__ import annotations

import numpy as np
import pytest

from speculant.sizing.shared_start import SharedStart


def test_it_is_what_no_text_adds() -> None:
    """Guards batches in which few texts draft: each is charged what it would cost if all drafted."""
    start, random, found = SharedStart(), np.random.default_rng(0), 0.0
    for _ in range(200):
        texts = int(random.integers(1, 6))
        found = start.observe(texts, (0.2 + 0.1 * texts) * random.lognormal(0, 0.1))
    assert start.observe(8, 1.0) == pytest.approx(0.2, rel=0.25)
    assert found <= 0.5 * 0.8


def test_time_belongs_to_texts_while_their_number_is_always_the_same() -> None:
    """Guards full batches: without other numbers to compare with, nothing is taken off what texts are charged."""
    start = SharedStart()
    for _ in range(100):
        assert start.observe(8, 1.0) == pytest.approx(0.0, abs=1e-9)


def test_a_stall_is_not_shared() -> None:
    """Guards against interruptions: one that hits a round in which few texts draft is no cost of every round."""
    start = SharedStart()
    for turn in range(100):
        start.observe(1 + turn % 4, 0.1 * (1 + turn % 4))
    start.observe(1, 10.0)
    assert start.observe(2, 0.2) < 0.03
