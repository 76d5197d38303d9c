"""Figures of a benchmark, by hand."""

from __future__ import annotations

import pytest

from benches import row
from speculant.bench.report.bench_table import task_label
from speculant.bench.report.summary import measurement_warnings, summary
from speculant.bench.suite.rows import Divergence

DRAFTED = {"rounds": 3, "drafted": 12, "offered_by_depth": [3, 2], "accepted_by_depth": [3, 1], "memory_bytes": 8}


def test_a_task() -> None:
    """Speeds are tokens over seconds of a trial, and the median trial's is given with the spread."""
    rows = [row("none", trial=trial) for trial in range(3)]
    rows += [row("x", trial=trial, seconds=seconds, **DRAFTED) for trial, seconds in enumerate((2.0, 2.5, 5.0))]
    plain, found = summary(rows)
    assert (plain["tokens_per_second"], plain["speedup"], plain["mat"]) == (2.0, 1.0, 1.0)
    assert plain["tokens_per_second_spread"] == [2.0, 2.0]
    assert (found["tokens"], found["rounds"], found["mat"], found["trials"], found["requests"]) == (10, 3, 3.0, 3, 1)
    assert (found["tokens_per_second"], found["tokens_per_second_spread"]) == (4.0, [2.0, 5.0])
    assert (found["speedup"], found["speedup_spread"]) == (2.0, [1.0, 2.5])
    assert found["decode_speedup"] == pytest.approx((9 / 1.5) / (9 / 4))
    assert found["request_speedup_quartiles"] == [1.0, 2.0, 2.5]
    assert (found["drafted"], found["accepted"], found["memory_bytes"]) == (12, 6, 8)
    assert found["acceptance_by_depth"] == [1.0, 0.5]
    assert found["by_depth"][1] == {"depth": 2, "offered": 2, "accepted": 1}
    assert plain["time_share"] == {"draft": 0.25, "target": 0.5, "rest": 0.25}


def test_what_a_method_does_not_report_is_none() -> None:
    """Transformers' own decoding reports no shares of time and no drafts."""
    silent = {"drafted": None, "offered_by_depth": None, "draft_seconds": None, "target_seconds": None}
    _, found = summary([row("none"), row("hf:generate", accepted_by_depth=[1], **silent)])
    assert found["time_share"] == {"draft": None, "target": None, "rest": None}
    assert found["drafted"] is None
    assert found["acceptance_by_depth"] is None
    assert found["by_depth"] == [{"depth": 1, "offered": None, "accepted": 1}]
    assert found["tokens_per_second_spread"] is None


def test_tasks_categories_and_temperatures() -> None:
    """Each temperature's tasks, then all of them together: all tokens over all seconds, not a mean of speeds."""
    rows = [
        row(method, task=task, category=task, temperature=temperature, seconds=seconds)
        for temperature in (0.0, 1.0)
        for task, seconds in (("a", 5.0), ("b", 15.0))
        for method in ("none", "x")
    ]
    found = summary(rows)
    assert [(each["temperature"], each["task"], each["method"]) for each in found[:6]] == [
        (0.0, task, method) for task in ("a", "b", "overall") for method in ("none", "x")
    ]
    assert len(found) == 12
    overall = found[4]
    assert (overall["tokens"], overall["tokens_per_second"]) == (20, 1.0)
    assert [(part["category"], part["tokens_per_second"]) for part in overall["categories"]] == [
        ("a", 2.0),
        ("b", pytest.approx(10 / 15)),
    ]


def test_identity() -> None:
    """Only what promises the same tokens is compared, and each difference is listed."""
    divergence = Divergence(3, 0.25, True)
    rows = [row("none"), row("x", identical=False, divergence=divergence), row("y", identical=None)]
    _, x, y = summary(rows)
    assert (x["compared"], x["identical"], y["compared"]) == (1, 0, 0)
    place = x["divergences"][0]
    assert (place["position"], place["margin"], place["near_tie"]) == (3, 0.25, True)


def test_batches_compare_with_plain_decoding_of_their_size() -> None:
    """A batch's speed-up is over a plain batch; `speedup_over_one` compares with one request at a time."""
    rows = [row("none"), row("x", seconds=2.5)]
    rows += [row(name, batch=8, requests=8, tokens=80, seconds=s) for name, s in (("none", 10.0), ("x", 5.0))]
    found = {(each["batch"], each["method"]): each for each in summary(rows)}
    assert found[8, "x"]["speedup"] == 2.0
    assert found[8, "x"]["speedup_over_one"] == 8.0
    assert found[1, "x"]["speedup_over_one"] == found[1, "x"]["speedup"] == 2.0
    assert found[8, "none"]["requests"] == 8
    assert "batch 8" in task_label(found[8, "x"], list(found.values()))
    assert summary(rows[2:])[0]["speedup_over_one"] is None


def test_one_short_trial_is_warned_about() -> None:
    """A speed-up that rests on a single trial of a few seconds may be noise; several trials or a long one may not."""
    assert "one trial, the shortest of 2.5 s" in measurement_warnings(summary([row("none"), row("x", seconds=2.5)]))[0]
    assert measurement_warnings(summary([row("none", trial=trial) for trial in range(2)])) == []
    assert measurement_warnings(summary([row("none", seconds=40.0), row("x", seconds=35.0)])) == []
    assert measurement_warnings([]) == []
