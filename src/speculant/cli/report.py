"""The report and the JSON record at the end of a `generate` run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from speculant.bench.report.noise import beyond_drafts
from speculant.cli.comparison import PromptRuns, Timed, overall
from speculant.core.stats import compute_mat, format_drafting, format_notes, format_speed

if TYPE_CHECKING:
    from speculant.api.result import Result
    from speculant.cli.prompts import Message

INTERRUPTED = "note        interrupted: this is the text so far"


@dataclass(slots=True)
class PromptOutcome:
    """One prompt, its result, and the runs that it was compared with, if any."""

    prompt: str | list[Message]
    result: Result
    comparison: PromptRuns | None = None

    @property
    def complete(self) -> bool:
        """Whether the text was decoded to its end."""
        return self.result.finish_reason not in ("unfinished", "error")

    @property
    def compared(self) -> PromptRuns | None:
        """The comparison, if the required runs are complete and gave tokens."""
        return self.comparison if self.complete and self.comparison is not None and self.comparison.pairs else None

    @property
    def speedup(self) -> float | None:
        """The median ratio of tokens per second to those of plain decoding by the same loop."""
        return None if self.compared is None else self.compared.speedup

    @property
    def middle(self) -> tuple[Timed, Timed] | None:
        """The pair of compared runs, plain and drafted, with the median ratio."""
        return None if self.compared is None else self.compared.middle

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second; for compared runs, those of the median pair."""
        return self.result.stats.tokens_per_second if self.middle is None else self.middle[1].tokens_per_second

    @property
    def mat(self) -> float:
        """Tokens per target pass, likewise."""
        return (self.middle and self.middle[1].mat) or self.result.stats.mat

    def to_json(self, environment: dict[str, Any]) -> dict[str, Any]:
        """Return the record of one prompt; times measured only once are from the first run."""
        result, stats, compared = self.result, self.result.stats, self.compared
        reference = compared and compared.reference
        pairs, ratios = (compared.pairs, compared.ratios) if compared is not None else ([], [])
        return {
            "prompt": self.prompt,
            "text": result.text,
            "ids": result.ids,
            "finish_reason": result.finish_reason,
            "method": stats.method,
            "tokens": stats.tokens,
            "rounds": stats.rounds,
            "mat": self.mat,
            "tokens_per_second": self.tokens_per_second,
            "tokens_per_second_range": span([drafted.tokens_per_second for _, drafted in pairs]),
            "baseline_tokens_per_second": self.middle and self.middle[0].tokens_per_second,
            "baseline_tokens_per_second_range": span([plain.tokens_per_second for plain, _ in pairs]),
            "speedup": self.speedup,
            "speedup_range": span(ratios),
            "pairs": len(ratios) or None,
            "noisy": bool(compared.noisy) if compared is not None else None,
            "identical": compared and compared.identical,
            "hf_tokens_per_second": reference and reference.tokens_per_second,
            "identical_to_hf": compared and compared.matches_reference,
            "time_share": stats.time_share,
            "acceptance_by_depth": stats.acceptance_by_depth,
            "prompt_tokens": stats.prompt_tokens,
            "seconds": stats.seconds,
            "prefill_seconds": stats.prefill_seconds,
            "notes": stats.notes,
            "environment": environment,
        }

    def block(self, *, verbose: bool = False) -> str:
        """Return the report, most important lines first."""
        stats = self.result.stats
        lines = (
            [format_speed(stats.tokens, stats.seconds)] if self.compared is None else format_comparison(self.compared)
        )
        lines.append(format_drafting([stats], self.mat))
        if verbose:
            lines += stats.format_details()
        if not self.complete:
            lines.append(INTERRUPTED)
        return "\n".join(lines + format_notes([stats]))

    def line(self) -> str:
        """Return the report in one line, for one of many prompts."""
        stats = self.result.stats
        parts = [f"{self.tokens_per_second:.1f} tokens/s"]
        if self.compared is not None:
            parts += [f"speed-up {self.speedup:.2f}x", f"identical: {identity(self.compared)}"]
        parts += [f"{stats.tokens} tokens", f"{self.mat:.2f} tokens per pass"]
        if not self.complete:
            parts.append("failed" if self.result.finish_reason == "error" else "interrupted")
        return ", ".join(parts)


def format_comparison(compared: PromptRuns) -> list[str]:
    """Return the speeds with and without drafts, the speed-up (all from the same runs), and identity."""
    ratios, tokens = compared.ratios, len(compared.drafted[0].ids)
    plain, drafted = ([pair[which].tokens_per_second for pair in compared.pairs] for which in (0, 1))
    lines = [
        f"speed       {_format_value(drafted, compared.place)} tokens/s, {tokens} tokens",
        f"plain       {_format_value(plain, compared.place)} tokens/s",
        f"speed-up    {_format_value(ratios, compared.place, digits=2, unit='x')}",
    ]
    if len(ratios) > 1:
        lines.append(f"            the median of {len(ratios)} pairs in turns, with minimum and maximum")
    if compared.noisy:
        lines.append(f"            {compared.noisy}.")
    elif len(ratios) == 1:
        lines.append("            one pair only, to save time; timings of single runs vary.")
    lines.append(f"identical   {identity(compared)}")
    if compared.reference is not None:
        lines.append(f"reference   {compared.reference.tokens_per_second:.1f} tokens/s by transformers' model.generate")
    return lines


def identity(compared: PromptRuns) -> str:
    """Return whether the tokens equal those of the other ways of decoding."""
    if not compared.exact:
        return "not compared: this acceptance rule keeps at most the distribution, not the tokens of a seed"
    different = compared.differences()
    if different:
        return f"NO, differs from {different}"
    return "yes, to plain decoding" + (" and to model.generate" if compared.reference is not None else "")


def totals(outcomes: Sequence[PromptOutcome], seconds: float | None = None) -> str:
    """Return the report over many prompts; speeds are total tokens over total seconds, `seconds` in a batch."""
    stats = [outcome.result.stats for outcome in outcomes]
    tokens, rounds = sum(each.tokens for each in stats), sum(each.rounds for each in stats)
    compared = [outcome.compared for outcome in outcomes if outcome.compared is not None]
    mat = compute_mat(tokens, rounds, texts=sum(each.tokens > 0 for each in stats))
    lines = [
        *(
            format_comparison_totals(compared, mat)
            if compared
            else [format_speed(tokens, sum(each.seconds for each in stats) if seconds is None else seconds)]
        ),
        format_drafting(stats, mat),
        f"prompts     {len(outcomes)}",
    ]
    return "\n".join(lines + format_notes(stats))


def format_comparison_totals(compared: Sequence[PromptRuns], mat: float) -> list[str]:
    """Return speeds, speed-up and identity over many prompts, using each one's median pair."""
    tokens, plain, drafted = overall(compared)
    ratios = [each.speedup for each in compared if each.speedup is not None]
    same = [each.identical for each in compared if each.identical is not None]
    alike = [each.matches_reference for each in compared if each.matches_reference is not None]
    noisy = sum(bool(each.noisy) for each in compared)
    ratio = plain / drafted if drafted else 0.0
    beyond = beyond_drafts(ratio, mat)
    return [
        format_speed(tokens, drafted),
        f"plain       {_rate(tokens, plain):.1f} tokens/s in {plain:.2f} s",
        f"speed-up    {ratio:.2f}x, prompts from {min(ratios):.2f}x to {max(ratios):.2f}x",
        *(
            [f"            for {noisy} of {len(compared)} prompts the runs do not show which is faster."]
            if noisy
            else []
        ),
        *([f"            {beyond}."] if beyond else []),
        f"identical   {sum(same)} of {len(same)} to plain decoding, {sum(alike)} of {len(alike)} to model.generate"
        if same
        else f"identical   {identity(compared[0])}",
    ]


def span(values: Sequence[float]) -> list[float] | None:
    """Return the minimum and maximum; None if empty."""
    return [min(values), max(values)] if values else None


def _format_value(values: Sequence[float], place: int, *, digits: int = 1, unit: str = "") -> str:
    """Return one of the values, with the minimum and maximum if there are several."""
    low, shown, high = (f"{each:.{digits}f}{unit}" for each in (min(values), values[place], max(values)))
    return shown if len(values) == 1 else f"{shown} ({low} to {high})"


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if seconds else 0.0
