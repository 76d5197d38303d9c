"""Metrics of a run, against counts by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from speculant.bench.replay.calibration import Reliability
from speculant.bench.replay.metrics import over_time, run_metrics
from speculant.bench.replay.player import DraftingCost, ReplayResult
from speculant.sizing.step_cost import StepCost


def result(**changes: Any) -> ReplayResult:
    """Return three requests of two categories in five rounds."""
    drafting = DraftingCost(
        nodes=np.array([4, 4, 0, 4, 4]),
        deepest=np.array([2, 3, 0, 2, 2]),
        propose_seconds=np.array([1, 2, 3, 4, 5]) * 1e-6,
        learn_seconds=np.full(5, 2e-6),
        open_seconds=np.array([10, 20, 30]) * 1e-6,
        memory_bytes=9,
        reliability=Reliability(),
    )
    columns: dict[str, Any] = {
        "categories": ("x", "y", "x"),
        "prompt_tokens": np.array([10, 10, 10]),
        "request": np.array([0, 0, 1, 2, 2]),
        "accepted": np.array([2, 1, 0, 0, 2]),
        "drafting": drafting,
    }
    return ReplayResult(**(columns | changes))


def test_a_row() -> None:
    """Tokens count the bonus, times are microseconds."""
    row = run_metrics("f", "m", 4, result())
    assert (row["file"], row["method"], row["nodes"], row["requests"]) == ("f", "m", 4, 3)
    assert (row["tokens"], row["rounds"], row["mat"], row["nodes_per_round"]) == (10, 5, 2.0, 3.2)
    assert row["draft_us"] == pytest.approx({"mean": 3, "p50": 3, "p99": 4.96})
    assert row["learn_us"] == pytest.approx({"per_token": 1.0, "per_prompt_token": 2.0})
    assert (row["memory_bytes"], row["ece"], row["speedup"], row["reliability"]) == (9, None, None, [])


def test_categories() -> None:
    """Each category has the metrics of its own requests."""
    x, y = run_metrics("f", "m", 4, result())["categories"]
    assert (x["category"], x["tokens"], x["rounds"], x["draft_us"]["p50"]) == ("x", 9, 4, pytest.approx(3))
    assert (y["category"], y["tokens"], y["mat"], y["learn_us"]["per_prompt_token"]) == ("y", 1, 1.0, pytest.approx(2))


def test_depths() -> None:
    """A depth counts the drafts that reached it and those accepted down to it."""
    assert run_metrics("f", "m", 4, result())["by_depth"] == [
        {"depth": 1, "drafted": 4, "accepted": 3},
        {"depth": 2, "drafted": 4, "accepted": 2},
    ]


def test_time_runs_in_slices_of_requests() -> None:
    """Every request is in one slice, and there are no more slices than requests."""
    assert [part["mat"] for part in over_time(result())] == [2.5, 1.0, 2.0]
    assert over_time(result(), slices=1) == [{"requests": 3, "tokens": 10, "rounds": 5, "mat": 2.0}]


def test_the_speed_up_to_expect() -> None:
    """Plain passes for all tokens over passes of each draft's size, drafting and learning included."""
    cost = StepCost(np.array([0.0, 8.0]), np.array([1e-4, 2e-4]))
    passes, drafting = 4 * 1.5e-4 + 1e-4, (15 + 10 + 60) * 1e-6
    assert run_metrics("f", "m", 4, result(), cost)["speedup"] == pytest.approx(10 * 1e-4 / (passes + drafting))


def test_recorded_acceptance_has_no_cost() -> None:
    """What was not measured is None, not 0."""
    row = run_metrics("f", "recorded:e", 20, result(drafting=None), StepCost(np.zeros(1), np.ones(1)))
    assert (row["tokens"], row["rounds"], row["mat"]) == (10, 5, 2.0)
    assert row["draft_us"] == {"mean": None, "p50": None, "p99": None}
    assert [row[name] for name in ("nodes_per_round", "learn_us", "speedup", "memory_bytes", "ece")] == [None] * 5
    assert row["by_depth"][0] == {"depth": 1, "drafted": None, "accepted": 3}
