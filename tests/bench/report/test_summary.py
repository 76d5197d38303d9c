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


def test_trials_that_disagree_are_warned_about() -> None:
    """The guard of `generate --compare`: a range that tells nothing is named, one that every trial shows is not."""
    plain = [row("none", trial=trial) for trial in range(3)]

    def warned(*seconds: float, rounds: int = 3) -> list[str]:
        drafted = [row("mix", trial=i, seconds=each, rounds=rounds) for i, each in enumerate(seconds)]
        return measurement_warnings(summary([*plain, *drafted]))

    assert warned(2.5, 2.5, 2.6) == []
    assert "t, mix: this machine is too noisy to tell: the trials range from 1.25x to 2.50x" in warned(2.0, 4.0, 3.0)[0]
    assert "the trials disagree about which is faster" in warned(4.5, 5.5, 5.0)[0]
    assert warned(2.5, 2.5, 2.6, rounds=7)[0].startswith("t, mix: 2.00x is more than drafts can gain at 1.29 tokens")


def test_what_is_not_bounded_by_its_acceptance() -> None:
    """Other engines have faster passes, and batches end at other times; their speed-ups are no noise."""
    rows = [row("none", seconds=50.0), row("hf:generate", seconds=40.0)]
    rows += [row(name, batch=4, seconds=each) for name, each in (("none", 50.0), ("mix", 40.0))]
    assert measurement_warnings(summary(rows)) == []


def test_mat_is_of_the_trials_whose_speed_is_shown() -> None:
    """Sizes depend on timing, and so does acceptance: the median trial's, not the first one's."""
    drafted = [row("mix", trial=trial, rounds=rounds) for trial, rounds in enumerate((9, 3, 3))]
    found = summary([*(row("none", trial=trial) for trial in range(3)), *drafted])[1]
    assert (found["mat"], found["mat_spread"]) == (3.0, [1.0, 3.0])
