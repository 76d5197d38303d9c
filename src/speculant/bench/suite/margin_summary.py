"""Verifies that a method's output is the model's own, token by token.

The text need not equal that of plain decoding: where two tokens have the same logit within the target's arithmetic,
either is the model's. So each token is judged by itself, after the text that was emitted before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from speculant.bench.suite.margins import Margin


@dataclass(frozen=True, slots=True)
class MarginSummary:
    """Counts of near-ties and wrong tokens among the margins of one or more texts."""

    margins: Sequence[Margin]

    @property
    def argmax(self) -> int:
        """How many tokens are the plain model's argmax."""
        return sum(margin.value == 0 for margin in self.margins)

    @property
    def near_ties(self) -> int:
        """How many are not, by no more than rounding explains."""
        return sum(margin.near_tie for margin in self.margins)

    @property
    def wrong(self) -> int:
        """How many are neither."""
        return len(self.margins) - self.argmax - self.near_ties

    @property
    def largest(self) -> float:
        """The largest margin."""
        return max((margin.value for margin in self.margins), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """Return the counts, and position (from 1), margin and tolerance of every token that is not the argmax."""
        return {
            "tokens": len(self.margins),
            "best": self.argmax,
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
        """Return the counts as a sentence."""
        return (
            f"{len(self.margins)} tokens: {self.argmax} the plain model's argmax, {self.near_ties} near-ties, "
            f"{self.wrong} wrong; largest margin {self.largest:.3g}"
        )
