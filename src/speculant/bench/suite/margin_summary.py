"""Proof that a method says what the model says: each token it emitted, forced through the plain model.

The text need not be that of plain decoding to be right: where two tokens are equally good in the target's arithmetic,
both are the model's own. So every token is judged by itself, behind the text as it was emitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from speculant.bench.suite.margins import Margin


@dataclass(frozen=True, slots=True)
class Proof:
    """The margins of the emitted tokens of one or more texts."""

    margins: Sequence[Margin]

    @property
    def best(self) -> int:
        """How many tokens are the plain model's own choice."""
        return sum(margin.value == 0 for margin in self.margins)

    @property
    def near_ties(self) -> int:
        """How many are not, by no more than rounding explains."""
        return sum(margin.near_tie for margin in self.margins)

    @property
    def wrong(self) -> int:
        """How many are neither."""
        return len(self.margins) - self.best - self.near_ties

    @property
    def largest(self) -> float:
        """The largest margin."""
        return max((margin.value for margin in self.margins), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """Return the counts, and the place from 1, margin and tolerance of every token that was not best."""
        return {
            "tokens": len(self.margins),
            "best": self.best,
            "near_ties": self.near_ties,
            "wrong": self.wrong,
            "largest_margin": self.largest,
            "places": [
                {"position": i, "margin": margin.value, "tolerance": margin.tolerance, "near_tie": margin.near_tie}
                for i, margin in enumerate(self.margins, start=1)
                if margin.value
            ],
        }

    def line(self) -> str:
        """Return the counts for people."""
        return (
            f"{len(self.margins)} tokens: {self.best} the plain model's best, {self.near_ties} near-ties, "
            f"{self.wrong} wrong; largest margin {self.largest:.3g}"
        )
