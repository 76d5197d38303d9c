"""Reports and records."""

from __future__ import annotations

from dataclasses import replace

from speculant.api.result import Result
from speculant.cli.comparison import PromptRuns, Timed
from speculant.cli.report import PromptOutcome, totals
from speculant.core.stats import Stats


def outcome(
    ids: list[int], seconds: float, comparison: PromptRuns | None = None, *, reason: str = "stop"
) -> PromptOutcome:
    stats = Stats("aded", tokens=len(ids), rounds=len(ids) - 1, seconds=seconds, sizes="a long sentence")
    if comparison is not None and reason == "stop":
        comparison.drafted.append(Timed(ids, seconds))
    return PromptOutcome("p", Result(ids=ids, finish_reason=reason, stats=stats), comparison)


def test_a_run_alone_claims_nothing() -> None:
    """Without --compare there is no speed-up and no identity."""
    record = outcome([1, 2], 1.0).to_json({"python": "3"})
    assert [key for key, value in record.items() if value is None] == [
        "tokens_per_second_range",
        "baseline_tokens_per_second",
        "baseline_tokens_per_second_range",
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
    comparison = PromptRuns(plain=[Timed([1, 2], 2.0)], reference=Timed([1, 2], 4.0))
    compared = outcome([1, 2], 1.0, comparison)
    record = compared.to_json({})
    assert (record["speedup"], record["identical"], record["identical_to_hf"]) == (2.0, True, True)
    assert (record["baseline_tokens_per_second"], record["hf_tokens_per_second"]) == (1.0, 0.5)
    assert [line.split()[0] for line in compared.block().splitlines()] == [
        "speed", "plain", "speed-up", "one", "identical", "reference", "drafting",
    ]  # fmt: skip
    assert "speed       2.0 tokens/s, 2 tokens\nplain       1.0 tokens/s\nspeed-up    2.00x\n" in compared.block()
    assert "identical   yes, to plain decoding and to model.generate" in compared.block()
    assert "a long sentence" not in compared.block()
    assert "a long sentence" in compared.block(verbose=True)
    assert compared.line().startswith("2.0 tokens/s, speed-up 2.00x, identical: yes, to plain decoding")


def test_several_pairs_show_their_spread() -> None:
    """Speeds and speed-up are those of one pair, whose ratio is the median; noise takes the claim back."""
    comparison = PromptRuns(plain=[Timed([1, 2], 2.0)] * 3, drafted=[Timed([1, 2], each) for each in (1.0, 0.8)])
    comparison.plain[1] = Timed([1, 2], 1.9)
    compared = outcome([1, 2], 1.6, comparison)
    assert compared.result.stats.tokens_per_second == 1.25
    assert compared.block().splitlines()[:4] == [
        "speed       2.0 (1.2 to 2.5) tokens/s, 2 tokens",
        "plain       1.0 (1.0 to 1.1) tokens/s",
        "speed-up    2.00x (1.25x to 2.38x)",
        "            the median of 3 pairs in turns, with minimum and maximum",
    ]
    assert compared.line().startswith("2.0 tokens/s, speed-up 2.00x")
    record = compared.to_json({})
    assert (record["tokens_per_second"], record["tokens_per_second_range"]) == (2.0, [1.25, 2.5])
    assert (record["baseline_tokens_per_second"], record["speedup_range"]) == (1.0, [1.25, 2.375])
    comparison.plain[1] = Timed([1, 2], 0.5)
    assert "too noisy to tell" in compared.block()
    assert compared.to_json({})["noisy"] is True


def test_the_first_difference_is_named() -> None:
    """A text that differs must not look like one that does not, and the place helps to find out why."""
    comparison = PromptRuns(plain=[Timed([1, 5, 3], 2.0)], reference=Timed([1, 2], 2.0))
    compared = outcome([1, 2, 3], 1.0, comparison)
    assert "NO, differs from plain decoding at token 2 and model.generate at token 3" in compared.block()
    assert compared.to_json({})["identical"] is False


def test_an_interrupted_run_is_not_compared() -> None:
    """Half a text is neither identical nor faster."""
    half = outcome([1], 1.0, PromptRuns(plain=[Timed([1, 2], 2.0)]), reason="unfinished")
    assert half.speedup is None
    assert half.to_json({})["identical"] is None
    assert "interrupted" in half.block()
    assert "interrupted" in half.line()


def test_totals_are_of_all_tokens_over_all_seconds() -> None:
    """The mean of per-prompt speed-ups would favour short texts; an interrupted text counts for tokens only."""
    same, other = Timed([1, 2], 1.0), Timed([2] * 8, 4.0)
    outcomes = [
        outcome([1, 2], 1.0, PromptRuns(plain=[Timed([1, 2], 1.0)], reference=same)),
        outcome([1] * 8, 1.0, PromptRuns(plain=[Timed([1] * 8, 4.0)], reference=other)),
        outcome([1, 1], 1.0, PromptRuns(plain=[Timed([1, 1, 1], 4.0)]), reason="unfinished"),
    ]
    outcomes[1].result.stats.notes.append("a note")
    block = totals(outcomes)
    assert "speed       5.0 tokens/s: 10 tokens in 2.00 s\nplain       2.0 tokens/s in 5.00 s\n" in block
    assert "1.00 tokens per target pass" in block
    assert "speed-up    2.50x, prompts from 1.00x to 4.00x" in block
    assert "2.50x is more than drafts can gain at 1.00 tokens per target pass" in block
    assert "4.0 tokens/s: 12 tokens in 3.00 s" in totals([replace(each, comparison=None) for each in outcomes])
    assert "2 of 2 to plain decoding, 1 of 2 to model.generate" in block
    assert block.count("a note") == 1
