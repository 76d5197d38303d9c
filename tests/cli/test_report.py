"""Reports and records."""

from __future__ import annotations

from speculant.api.result import Result
from speculant.cli.comparison import Comparison, Timed
from speculant.cli.report import Outcome, totals
from speculant.core.stats import Stats


def outcome(ids: list[int], seconds: float, comparison: Comparison | None = None, *, reason: str = "stop") -> Outcome:
    stats = Stats("aded", tokens=len(ids), rounds=len(ids) - 1, seconds=seconds, sizes="a long sentence")
    if comparison is not None and reason == "stop":
        comparison.drafted.append(Timed(ids, seconds))
    return Outcome("p", Result(ids=ids, finish_reason=reason, stats=stats), comparison)


def test_a_run_alone_claims_nothing() -> None:
    """Without --compare there is no speed-up and no identity."""
    record = outcome([1, 2], 1.0).to_json({"python": "3"})
    assert [key for key, value in record.items() if value is None] == [
        "baseline_tokens_per_second",
        "speedup",
        "speedup_range",
        "pairs",
        "noisy",
        "identical",
        "hf_tokens_per_second",
        "identical_to_hf",
    ]
    assert record["environment"] == {"python": "3"}
    assert "identical" not in outcome([1, 2], 1.0).block()


def test_a_comparison_agrees_in_report_line_and_record() -> None:
    """Speed, speed-up and identity lead; details wait for --verbose."""
    comparison = Comparison(plain=[Timed([1, 2], 2.0)], reference=Timed([1, 2], 4.0))
    compared = outcome([1, 2], 1.0, comparison)
    record = compared.to_json({})
    assert (record["speedup"], record["identical"], record["identical_to_hf"]) == (2.0, True, True)
    assert (record["baseline_tokens_per_second"], record["hf_tokens_per_second"]) == (1.0, 0.5)
    assert [line.split()[0] for line in compared.block().splitlines()] == [
        "speed", "speed-up", "one", "identical", "reference", "drafting",
    ]  # fmt: skip
    assert "speed-up    2.00x over plain decoding at 1.0 tokens/s" in compared.block()
    assert "identical   yes, to plain decoding and to model.generate" in compared.block()
    assert "a long sentence" not in compared.block()
    assert "a long sentence" in compared.block(verbose=True)
    assert compared.line().startswith("2.0 tokens/s, speed-up 2.00x, identical: yes, to plain decoding")


def test_several_pairs_show_their_spread() -> None:
    """The median and the range; noise takes the claim back."""
    comparison = Comparison(plain=[Timed([1, 2], 2.0)] * 3, drafted=[Timed([1, 2], each) for each in (1.0, 0.8)])
    compared = outcome([1, 2], 1.6, comparison)
    assert (
        "speed-up    2.00x over plain decoding at 1.0 tokens/s (median of 3 pairs, 1.25x to 2.50x)" in compared.block()
    )
    assert compared.to_json({})["speedup_range"] == [1.25, 2.5]
    comparison.plain[1] = Timed([1, 2], 0.5)
    assert "too noisy to tell" in compared.block()
    assert compared.to_json({})["noisy"] is True


def test_the_first_difference_is_named() -> None:
    """A text that differs must not look like one that does not, and the place helps to find out why."""
    comparison = Comparison(plain=[Timed([1, 5, 3], 2.0)], reference=Timed([1, 2], 2.0))
    compared = outcome([1, 2, 3], 1.0, comparison)
    assert "NO, differs from plain decoding at token 2 and model.generate at token 3" in compared.block()
    assert compared.to_json({})["identical"] is False


def test_an_interrupted_run_is_not_compared() -> None:
    """Half a text is neither identical nor faster."""
    half = outcome([1], 1.0, Comparison(plain=[Timed([1, 2], 2.0)]), reason="unfinished")
    assert half.speedup is None
    assert half.to_json({})["identical"] is None
    assert "interrupted" in half.block()
    assert "interrupted" in half.line()


def test_totals_are_of_all_tokens_over_all_seconds() -> None:
    """The mean of per-prompt speed-ups would favour short texts; an interrupted text counts for tokens only."""
    same, other = Timed([1, 2], 1.0), Timed([2] * 8, 4.0)
    outcomes = [
        outcome([1, 2], 1.0, Comparison(plain=[Timed([1, 2], 1.0)], reference=same)),
        outcome([1] * 8, 1.0, Comparison(plain=[Timed([1] * 8, 4.0)], reference=other)),
        outcome([1, 1], 1.0, Comparison(plain=[Timed([1, 1, 1], 4.0)]), reason="unfinished"),
    ]
    outcomes[1].result.stats.notes.append("a note")
    block = totals(outcomes)
    assert "4.0 tokens/s: 12 tokens in 3.00 s" in block
    assert "1.00 tokens per target pass" in block
    assert "speed-up    2.50x" in block
    assert "2 of 2 to plain decoding, 1 of 2 to model.generate" in block
    assert block.count("a note") == 1
