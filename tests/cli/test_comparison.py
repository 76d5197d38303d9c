"""Runs in turns."""

from __future__ import annotations

import pytest

from speculant.cli.comparison import PAIRS, PromptRuns, Timed, overall, pairs_for
from speculant.cli.report import format_comparison_totals, identity


def timed(*seconds: float) -> list[Timed]:
    return [Timed([1, 2, 3], each) for each in seconds]


@pytest.mark.parametrize(
    ("seconds", "prompts", "pairs"), [(0.1, 1, PAIRS), (8.0, 1, 5), (13.0, 1, 3), (100.0, 1, 1), (1.0, 20, 2)]
)
def test_long_runs_are_repeated_less(seconds: float, prompts: int, pairs: int) -> None:
    """A short text needs several, a long one would keep the user waiting."""
    assert pairs_for(seconds, prompts) == pairs


def test_one_outlier_decides_nothing() -> None:
    """The pair in the middle counts, not the mean of the times."""
    compared = PromptRuns(plain=timed(2.0, 2.0, 2.2), drafted=timed(1.0, 9.0, 1.0))
    assert compared.speedup == pytest.approx(2.0)
    assert compared.middle == (compared.plain[0], compared.drafted[0])
    assert overall([compared]) == (3, 2.0, 1.0)


@pytest.mark.parametrize(
    ("plain", "drafted", "reason"),
    [
        (timed(1.0, 1.1, 1.0), timed(0.5, 0.5, 0.5), ""),
        (timed(1.0, 2.0, 1.0), timed(0.5, 0.5, 0.5), "from 2.00x to 4.00x, plain decoding from 2 to 3 tokens/s"),
        (timed(1.0, 1.0), timed(0.9, 1.1), "the pairs disagree"),
        (timed(1.0, 1.0), timed(0.98, 1.02), ""),
        (timed(1.0), timed(0.9), ""),
    ],
)
def test_noise_is_named(plain: list[Timed], drafted: list[Timed], reason: str) -> None:
    """A claim needs a machine that is steady, or a difference that every pair shows."""
    assert PromptRuns(plain=plain, drafted=drafted).noisy.find(reason) >= 0
    assert bool(PromptRuns(plain=plain, drafted=drafted).noisy) is bool(reason)


def test_more_than_drafts_can_gain_is_noise() -> None:
    """Steady pairs beyond the tokens per pass say that something slowed plain decoding, not that drafts are fast."""
    drafted = [Timed([1, 2, 3], 1.0, mat) for mat in (1.2, 1.24, 1.3)]
    compared = PromptRuns(plain=timed(1.45, 1.45, 1.45), drafted=drafted)
    assert compared.noisy.startswith("1.45x is more than drafts can gain at 1.24 tokens per target pass")
    assert not PromptRuns(plain=timed(1.2, 1.2, 1.2), drafted=drafted).noisy


def test_every_run_must_agree() -> None:
    """A repeated run that differs is a fault as well."""
    compared = PromptRuns(plain=timed(1.0, 1.0), drafted=[*timed(1.0), Timed([1, 2], 1.0)])
    assert not compared.identical
    assert compared.matches_reference is None
    assert compared.differences() == "plain decoding at token 3"


def test_a_rule_that_keeps_the_distribution_only() -> None:
    """Other tokens of the same distribution are no fault, and are not called identical either."""
    other = [Timed([7, 8], 1.0)]
    compared = PromptRuns(plain=timed(1.0), drafted=other, reference=timed(1.0)[0], exact=False)
    assert compared.identical is None
    assert compared.matches_reference is None
    assert identity(compared).startswith("not compared")
    assert "not compared" in format_comparison_totals([compared], 1.0)[-1]
