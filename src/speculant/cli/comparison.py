"""Plain and drafted decoding of one prompt, timed in turns: the median ratio, and whether it can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

PAIRS = 5
SECONDS = 40.0  # spent on the pairs of all prompts together, about
STEADY = 1.3  # largest over smallest ratio of pairs, above which the machine does other things
CLEAR = 1.1  # up to which it does not matter on which side of 1 they are


@dataclass(frozen=True, slots=True)
class Timed:
    """New token ids and the seconds they took, prompt included."""

    ids: list[int]
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second."""
        return len(self.ids) / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class Comparison:
    """The runs of one prompt.

    Attributes:
        plain, drafted: by the same loop without drafts and with them, in turns.
        reference: transformers' own `generate`.
        exact: whether drafted runs must give plain decoding's tokens; False where the acceptance rule promises only
            their distribution.
    """

    plain: list[Timed] = field(default_factory=list)
    drafted: list[Timed] = field(default_factory=list)
    reference: Timed | None = None
    exact: bool = True

    @property
    def ratios(self) -> list[float]:
        """Drafted over plain tokens per second, by pair."""
        pairs = zip(self.plain, self.drafted, strict=False)
        return [ours.tokens_per_second / plain.tokens_per_second for plain, ours in pairs if plain.tokens_per_second]

    @property
    def speedup(self) -> float | None:
        """The median of the ratios; None before the first pair is complete."""
        return median(self.ratios) if self.ratios else None

    @property
    def baseline(self) -> float:
        """The median of plain decoding's tokens per second."""
        return median(each.tokens_per_second for each in self.plain)

    @property
    def noisy(self) -> str:
        """Why the ratios do not tell what is faster; empty where they do."""
        ratios, speeds = self.ratios, [each.tokens_per_second for each in self.plain]
        if not ratios or max(ratios) <= CLEAR * min(ratios):
            return ""
        if max(ratios) > STEADY * min(ratios):
            return (
                f"this machine is too noisy to tell: the pairs range from {min(ratios):.2f}x to {max(ratios):.2f}x, "
                f"plain decoding from {min(speeds):.0f} to {max(speeds):.0f} tokens/s. End other programs"
            )
        if min(ratios) < 1 < max(ratios):
            return "the pairs disagree about which is faster. Generate more tokens for a clearer answer"
        return ""

    @property
    def identical(self) -> bool | None:
        """Whether all runs by the same loop gave the same tokens; None if they need not."""
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


def pairs_for(seconds: float, prompts: int) -> int:
    """Return how often a pair is timed.

    Args:
        seconds: what the first pair took.
        prompts: how many are compared; many prompts average out what few repetitions leave.
    """
    return max(1, min(PAIRS, round(SECONDS / max(1e-9, seconds * prompts))))


def overall(runs: Sequence[Sequence[Timed]]) -> tuple[int, float]:
    """Return tokens and seconds of several prompts, each by its run of median speed."""
    middles = [sorted(each, key=lambda run: run.seconds)[len(each) // 2] for each in runs]
    return sum(len(each.ids) for each in middles), sum(each.seconds for each in middles)


def first_difference(ids: Sequence[int], others: Sequence[int]) -> int:
    """Return the place, counted from 1, of the first token that differs or is missing in one of two texts."""
    pairs = zip(ids, others, strict=False)
    return next((i for i, (one, other) in enumerate(pairs, start=1) if one != other), min(len(ids), len(others)) + 1)
