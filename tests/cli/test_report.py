"""Blocks and records."""

from __future__ import annotations

from speculant.api.result import Result
from speculant.cli.baselines import Timed
from speculant.cli.report import Outcome, totals
from speculant.core.stats import Stats


def outcome(
    ids: list[int], seconds: float, *, plain: Timed | None = None, reference: Timed | None = None, reason: str = "stop"
) -> Outcome:
    stats = Stats("aded", tokens=len(ids), rounds=len(ids) - 1, seconds=seconds)
    return Outcome("p", Result(ids=ids, finish_reason=reason, stats=stats), plain, reference)


def test_a_run_alone_claims_nothing() -> None:
    """Without --compare there is no speed-up and no identity."""
    record = outcome([1, 2], 1.0).to_json({"python": "3"})
    assert [key for key, value in record.items() if value is None] == [
        "baseline_tokens_per_second",
        "speedup",
        "identical",
        "hf_tokens_per_second",
        "identical_to_hf",
    ]
    assert record["environment"] == {"python": "3"}
    assert "identical" not in outcome([1, 2], 1.0).block()


def test_a_comparison_is_told_in_block_line_and_record() -> None:
    """All three say the same."""
    compared = outcome([1, 2], 1.0, plain=Timed([1, 2], 2.0), reference=Timed([1, 2], 4.0))
    record = compared.to_json({})
    assert (record["speedup"], record["identical"], record["identical_to_hf"]) == (2.0, True, True)
    assert (record["baseline_tokens_per_second"], record["hf_tokens_per_second"]) == (1.0, 0.5)
    assert "speed-up    2.00x" in compared.block()
    assert "identical   yes, to baseline and reference" in compared.block()
    assert compared.line().endswith("speed-up 2.00x, identical: yes, to baseline and reference")


def test_the_first_difference_is_named() -> None:
    """A text that differs must not look like one that does not, and the place helps to find out why."""
    compared = outcome([1, 2, 3], 1.0, plain=Timed([1, 5, 3], 2.0), reference=Timed([1, 2], 2.0))
    assert "NO, differs from baseline at token 2 and reference at token 3" in compared.block()
    assert compared.to_json({})["identical"] is False


def test_an_interrupted_run_is_not_compared() -> None:
    """Half a text is neither identical nor faster."""
    half = outcome([1], 1.0, plain=Timed([1, 2], 2.0), reason="unfinished")
    assert half.speedup is None
    assert half.to_json({})["identical"] is None
    assert "interrupted" in half.block()
    assert "interrupted" in half.line()


def test_totals_are_of_all_tokens_over_all_seconds() -> None:
    """The mean of per-prompt speed-ups would favour short texts; an interrupted text counts for tokens only."""
    outcomes = [
        outcome([1, 2], 1.0, plain=Timed([1, 2], 1.0), reference=Timed([1, 2], 1.0)),
        outcome([1] * 8, 1.0, plain=Timed([1] * 8, 4.0), reference=Timed([2] * 8, 4.0)),
        outcome([1, 1], 1.0, plain=Timed([1, 1, 1], 4.0), reason="unfinished"),
    ]
    outcomes[1].result.stats.notes.append("a note")
    block = totals(outcomes)
    assert "12 in 3.00 s: 4.0 tokens/s" in block
    assert "9, MAT 1.00" in block
    assert "speed-up    2.50x" in block
    assert "2 of 2 to the baseline, 1 of 2 to the reference" in block
    assert block.count("a note") == 1
