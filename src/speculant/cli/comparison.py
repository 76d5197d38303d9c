"""Plain and drafted decoding of one prompt, timed alternately: the median pair, and whether it is reliable.

Both speeds, their ratio and the tokens per pass come from one pair, the one with the median ratio. Separate medians
would contradict each other on a noisy machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from speculant.bench.report.noise import beyond_drafts, unsteady

if TYPE_CHECKING:
    from speculant.api.result import Result

PAIRS = 5
SECONDS = 40.0  # approximate time for the pairs of all prompts together


@dataclass(frozen=True, slots=True)
class Timed:
    """New token ids, the time in seconds (prompt included), and tokens per target pass or None if not counted."""

    ids: list[int]
    seconds: float
    mat: float | None = None

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second."""
        return len(self.ids) / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class PromptRuns:
    """The runs of one prompt.

    Attributes:
        plain, drafted: alternating runs of the same loop without and with drafts.
        reference: the run of transformers' own `generate`.
        exact: whether drafted runs must give plain decoding's tokens; False if the acceptance rule only guarantees
            their distribution.
    """

    plain: list[Timed] = field(default_factory=list)
    drafted: list[Timed] = field(default_factory=list)
    reference: Timed | None = None
    exact: bool = True

    @property
    def pairs(self) -> list[tuple[Timed, Timed]]:
        """The complete pairs, plain and drafted, by ascending ratio."""
        pairs = [pair for pair in zip(self.plain, self.drafted, strict=False) if pair[0].tokens_per_second]
        return sorted(pairs, key=_ratio)

    @property
    def middle(self) -> tuple[Timed, Timed] | None:
        """The pair with the median ratio, for an even number the lower one; None before the first is complete."""
        return self.pairs[self.place] if self.pairs else None

    @property
    def place(self) -> int:
        """Its index among the pairs."""
        return (len(self.pairs) - 1) // 2

    @property
    def ratios(self) -> list[float]:
        """Ratios of drafted to plain tokens per second, ascending."""
        return [_ratio(pair) for pair in self.pairs]

    @property
    def speedup(self) -> float | None:
        """The ratio of the median pair."""
        return None if self.middle is None else _ratio(self.middle)

    @property
    def noisy(self) -> str:
        """Why the ratios do not tell which is faster; empty if they do."""
        plain = [each.tokens_per_second for each, _ in self.pairs]
        mat = None if self.middle is None else self.middle[1].mat
        return unsteady(self.ratios, plain) or beyond_drafts(self.speedup, mat)

    @property
    def identical(self) -> bool | None:
        """Whether all runs of the same loop gave the same tokens; None if they need not."""
        return None if not self.exact else all(each.ids == self.plain[0].ids for each in [*self.plain, *self.drafted])

    @property
    def matches_reference(self) -> bool | None:
        """Whether the drafted runs gave the tokens of `model.generate`; None if that was not run or they need not."""
        return (
            None
            if self.reference is None or not self.exact
            else all(each.ids == self.reference.ids for each in self.drafted)
        )

    def differences(self) -> str:
        """Return where the drafted tokens first differ from the others; empty if they do not."""
        places: list[str] = []
        for each in self.drafted:
            for name, other in (("plain decoding", self.plain[0]), ("model.generate", self.reference)):
                if other is not None and each.ids != other.ids and not any(name in place for place in places):
                    places.append(f"{name} at token {first_difference(each.ids, other.ids)}")
        return " and ".join(places)


def time_result(result: Result) -> Timed:
    """Return the timing of a request."""
    return Timed(result.ids, result.stats.seconds, result.stats.mat)


def pairs_for(seconds: float, prompts: int) -> int:
    """Return how often to time a pair.

    Args:
        seconds: duration of the first pair.
        prompts: number of prompts compared; with many, fewer repetitions average out the noise.
    """
    return max(1, min(PAIRS, round(SECONDS / max(1e-9, seconds * prompts))))


def overall(compared: Sequence[PromptRuns]) -> tuple[int, float, float]:
    """Return tokens, plain seconds and drafted seconds over several prompts, using each one's median pair."""
    middles = [each.middle for each in compared if each.middle is not None]
    tokens = sum(len(drafted.ids) for _, drafted in middles)
    return tokens, sum(plain.seconds for plain, _ in middles), sum(drafted.seconds for _, drafted in middles)


def _ratio(pair: tuple[Timed, Timed]) -> float:
    plain, drafted = pair
    return drafted.tokens_per_second / plain.tokens_per_second


def first_difference(ids: Sequence[int], others: Sequence[int]) -> int:
    """Return the 1-based position of the first token that differs or is missing in one of two texts."""
    pairs = zip(ids, others, strict=False)
    return next((i for i, (one, other) in enumerate(pairs, start=1) if one != other), min(len(ids), len(others)) + 1)
