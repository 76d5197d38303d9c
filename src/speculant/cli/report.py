"""What `generate` says about its runs: a block for people, a record for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from speculant.cli.baselines import Timed

if TYPE_CHECKING:
    from speculant.api.result import Result


@dataclass(slots=True)
class Outcome:
    """One prompt, what came of it, and what came of it without drafts if that was asked for."""

    prompt: str
    result: Result
    plain: Timed | None = None
    reference: Timed | None = None

    @property
    def complete(self) -> bool:
        """Whether the text was decoded to its end."""
        return self.result.finish_reason not in ("unfinished", "error")

    @property
    def speedup(self) -> float | None:
        """Tokens per second over those of plain decoding by the same loop."""
        if self.plain is None or not self.complete or not self.plain.tokens_per_second:
            return None
        return self.result.stats.tokens_per_second / self.plain.tokens_per_second

    def same_as(self, other: Timed | None) -> bool | None:
        """Say whether the tokens are those of a baseline; None if that cannot be said."""
        return None if other is None or not self.complete else self.result.ids == other.ids

    def to_json(self, environment: dict[str, Any]) -> dict[str, Any]:
        """Return the record of one prompt."""
        result, stats = self.result, self.result.stats
        return {
            "prompt": self.prompt,
            "text": result.text,
            "ids": result.ids,
            "finish_reason": result.finish_reason,
            "method": stats.method,
            "tokens": stats.tokens,
            "rounds": stats.rounds,
            "mat": stats.mat,
            "tokens_per_second": stats.tokens_per_second,
            "baseline_tokens_per_second": self.plain and self.plain.tokens_per_second,
            "speedup": self.speedup,
            "identical": self.same_as(self.plain),
            "hf_tokens_per_second": self.reference and self.reference.tokens_per_second,
            "identical_to_hf": self.same_as(self.reference),
            "time_share": stats.time_share,
            "acceptance_by_depth": stats.acceptance_by_depth,
            "prompt_tokens": stats.prompt_tokens,
            "seconds": stats.seconds,
            "prefill_seconds": stats.prefill_seconds,
            "notes": stats.notes,
            "environment": environment,
        }

    def block(self) -> str:
        """Return the end-of-run block."""
        lines = [self.result.stats.report()]
        if not self.complete:
            lines.append("note        interrupted: this is what there was so far")
        if self.plain is not None:
            lines.append(f"baseline    {self.plain.tokens_per_second:.1f} tokens/s: the same loop without drafts")
        if self.reference is not None:
            lines.append(f"reference   {self.reference.tokens_per_second:.1f} tokens/s: transformers' model.generate")
        if self.speedup is not None:
            lines.append(f"speed-up    {self.speedup:.2f}x over the baseline")
            lines.append(f"identical   {self._identity()}")
        return "\n".join(lines)

    def line(self) -> str:
        """Return the same in a line, for one of many prompts."""
        stats = self.result.stats
        parts = [f"{stats.tokens} tokens", f"MAT {stats.mat:.2f}", f"{stats.tokens_per_second:.1f} tokens/s"]
        if not self.complete:
            parts.append("failed" if self.result.finish_reason == "error" else "interrupted")
        if self.speedup is not None:
            parts += [f"speed-up {self.speedup:.2f}x", f"identical: {self._identity()}"]
        return ", ".join(parts)

    def _identity(self) -> str:
        baselines = {"baseline": self.plain, "reference": self.reference}
        given = {name: timed for name, timed in baselines.items() if timed is not None}
        different = {name: timed for name, timed in given.items() if not self.same_as(timed)}
        if not different:
            return f"yes, to {' and '.join(given)}"
        places = [f"{name} at token {_first_difference(self.result.ids, t.ids)}" for name, t in different.items()]
        return f"NO, differs from {' and '.join(places)}"


def totals(outcomes: Sequence[Outcome], seconds: float | None = None) -> str:
    """Return the block over many prompts; speeds are of all tokens over all seconds, which a batch's overlap."""
    stats = [outcome.result.stats for outcome in outcomes]
    tokens, rounds = sum(each.tokens for each in stats), sum(each.rounds for each in stats)
    seconds = sum(each.seconds for each in stats) if seconds is None else seconds
    of_prefills = sum(each.tokens > 0 for each in stats)  # each begun text has one token that belongs to no round
    mat = (tokens - of_prefills) / rounds if rounds else 0.0
    lines = [
        f"method      {stats[0].method}",
        f"prompts     {len(outcomes)}",
        f"tokens      {tokens} in {seconds:.2f} s: {_speed(tokens, seconds):.1f} tokens/s",
        f"rounds      {rounds}, MAT {mat:.2f} tokens per target pass",
        *_compared_totals([outcome for outcome in outcomes if outcome.speedup is not None]),
    ]
    notes = dict.fromkeys(note for each in stats for note in each.notes)
    return "\n".join(lines + [f"note        {note}" for note in notes])


def _compared_totals(outcomes: Sequence[Outcome]) -> list[str]:
    plain = [outcome.plain for outcome in outcomes if outcome.plain is not None]
    reference = [outcome.reference for outcome in outcomes if outcome.reference is not None]
    if not plain:
        return []
    ours = [Timed(outcome.result.ids, outcome.result.stats.seconds) for outcome in outcomes]
    same = sum(outcome.same_as(outcome.plain) is True for outcome in outcomes)
    alike = sum(outcome.same_as(outcome.reference) is True for outcome in outcomes)
    return [
        f"baseline    {_overall(plain):.1f} tokens/s: the same loop without drafts",
        *([f"reference   {_overall(reference):.1f} tokens/s: transformers' model.generate"] if reference else []),
        f"speed-up    {_overall(ours) / _overall(plain):.2f}x over the baseline",
        f"identical   {same} of {len(plain)} to the baseline, {alike} of {len(reference)} to the reference",
    ]


def _overall(timed: Sequence[Timed]) -> float:
    return _speed(sum(len(each.ids) for each in timed), sum(each.seconds for each in timed))


def _speed(tokens: int, seconds: float) -> float:
    return tokens / seconds if seconds else 0.0


def _first_difference(ids: list[int], others: list[int]) -> int:
    """Return the place, counted from 1, of the first token that differs or is missing in one of two texts."""
    pairs = zip(ids, others, strict=False)
    return next((i for i, (one, other) in enumerate(pairs, start=1) if one != other), min(len(ids), len(others)) + 1)
