"""Measures how far each token of a text is from plain decoding's choice at its place.

The text need not equal that of plain decoding: if two tokens have the same logit within the target's precision, both
are the model's choice. So each token is judged by itself, after the text emitted before it.

The text is forced through the plain model, one token per pass, comparing the top token's logit with that of the text's
own token. A margin of 0 means that it was the model's choice. In bf16 a pass over a tree and a pass over one token
round differently, so a choice between two tokens with nearly equal logits can go either way: such a place is a
near-tie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from speculant.api.result import Stream
from speculant.api.speculator import Speculator
from speculant.bench.systems.forced import ForcedSampler, make_forced_components, make_forced_request
from speculant.core.tree import Int32

STEPS = 4  # tolerance in rounding steps of the dtype at the size of the top logit


@dataclass(frozen=True, slots=True)
class Margin:
    """The top token's logit minus that of the actual token, and the tolerance for rounding."""

    value: float
    tolerance: float

    @property
    def near_tie(self) -> bool:
        """Whether another token was best, but within the tolerance."""
        return 0 < self.value <= self.tolerance


@dataclass(frozen=True, slots=True)
class MarginSummary:
    """Counts of near-ties and wrong tokens among the margins of one or more texts."""

    margins: Sequence[Margin]

    @property
    def argmax(self) -> int:
        """The number of tokens that are the plain model's argmax."""
        return sum(margin.value == 0 for margin in self.margins)

    @property
    def near_ties(self) -> int:
        """The number of other tokens within the tolerance."""
        return sum(margin.near_tie for margin in self.margins)

    @property
    def wrong(self) -> int:
        """The number of tokens beyond the tolerance."""
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


class _MarginSampler(ForcedSampler):
    """Records the margin of every token that it commits."""

    def __init__(self, prompt: Tensor, output: Sequence[int], *, rounding: float | None = None) -> None:
        super().__init__(prompt, output)
        self._rounding = rounding  # rounding of passes, if coarser than that of the logits
        self.margins: list[Margin] = []

    def draw(self, row: int) -> int:
        assert self._loaded is not None
        logits, token = self._loaded[row], super().draw(row)
        best = float(logits.max())
        step = self._rounding or torch.finfo(logits.dtype).eps
        self.margins.append(Margin(best - float(logits[token]), STEPS * step * max(1.0, abs(best))))
        return token


def margins(plain: Speculator, prompt: Int32, output: Sequence[int]) -> list[Margin]:
    """Return the margin of each of the M output tokens.

    Args:
        plain: a speculator with method `none` on the model, created with `fast=False` for transformers' own passes.
        prompt: Int32[T].
        output: M ids, at least one.
    """
    sampler = partial(_MarginSampler, rounding=plain.engine.rounding)
    generation = make_forced_request(plain, prompt, output, sampler=sampler)
    for _ in Stream(generation, make_forced_components(plain)):
        pass
    assert isinstance(generation.sampler, _MarginSampler)
    return generation.sampler.margins
