"""Drafting time: true through stalls, and told apart by nodes, levels and what drafting takes at all."""

from __future__ import annotations

import numpy as np
import pytest

from speculant.sizing.drafting_time import DraftingTime


def test_drafting_is_known_by_the_node() -> None:
    """The time of drafting is a line over the nodes; what every round costs is no node's."""
    drafting, random = DraftingTime(), np.random.default_rng(2)
    for nodes in random.integers(0, 64, 400).tolist():
        drafting.observe(nodes, 0.3 + 0.01 * nodes)
    assert drafting.per_node == pytest.approx(0.01, rel=0.1)


def test_a_stall_is_not_what_drafting_takes() -> None:
    """Guards the first rounds, in which code is compiled for seconds: drafting is not given up for it."""
    drafting = DraftingTime()
    times = [drafting.observe(8, seconds) for seconds in (500.0, 0.1, 300.0, 0.1, 0.1, 200.0)]
    assert max(times) < 0.5


def test_starting_a_head_is_told_from_its_levels() -> None:
    """Guards drafts that can do without a head: what it takes before its first level is paid for apart."""
    drafting, random = DraftingTime(), np.random.default_rng(2)
    for levels in random.integers(0, 8, 600).tolist():
        drafting.observe(levels, 0.1 + 0.05 * levels + 0.4 * (levels > 0), even=True)
    assert drafting.per_level == pytest.approx(0.05, rel=0.1)
    assert drafting.level_start == pytest.approx(0.4, rel=0.1)


def test_the_usual_time_is_that_of_recent_undisturbed_rounds() -> None:
    """The lower quartile of the last 15 rounds, in which neither stalls nor earlier rounds count."""
    drafting = DraftingTime()
    assert drafting.usual == 0
    for time in [9.0] * 20 + [0.4, 0.2, 0.3, 7.0, 0.1] * 3:
        drafting.observe(4, time)
    assert drafting.usual == pytest.approx(0.2)


def test_what_reading_takes_is_told_from_drafting() -> None:
    """Guards what drafts are charged: the first draft of a text reads its prompt, which says nothing of the next."""
    drafting = DraftingTime()
    for _ in range(4):
        drafting.observe(4, 1.0)
    assert drafting.excess == 0
    charged = drafting.observe(4, 9.0, usual=False)
    assert charged + drafting.excess == pytest.approx(9.0)
    assert charged < 2
    drafting.observe(4, 1.0)
    assert (drafting.excess, drafting.usual) == (0, pytest.approx(1.0))
