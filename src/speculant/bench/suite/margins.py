"""How far each token of a text is from the one that plain decoding would have chosen there.

The text is forced through the plain model, one token a pass, and at each position the largest logit is compared with
that of the text's token. A margin of 0 means that the token is the model's argmax. In bf16 a pass over a tree and a
pass over one token round differently, so a choice between two tokens with nearly equal logits can go either way: such
a position is a near-tie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from speculant.api.speculator import Speculator
from speculant.bench.systems.forced import ForcedSampler, force
from speculant.core.tree import Int32

STEPS = 4  # units in the last place of the largest logit by which rounding may move a logit


@dataclass(frozen=True, slots=True)
class Margin:
    """The distance of a token from the model's argmax.

    Attributes:
        value: the largest logit minus the token's.
        tolerance: the distance that rounding explains.
    """

    value: float
    tolerance: float

    @property
    def near_tie(self) -> bool:
        """Whether another token has a larger logit, by no more than rounding explains."""
        return 0 < self.value <= self.tolerance


class _MarginRecorder(ForcedSampler):
    def __init__(self, output: Sequence[int]) -> None:
        super().__init__(output)
        self.margins: list[Margin] = []

    def draw(self, row: int) -> tuple[int, bool]:
        logits: Tensor = self._logits[row]
        token, ended = super().draw(row)
        largest = float(logits.max())
        epsilon = torch.finfo(logits.dtype).eps
        self.margins.append(Margin(largest - float(logits[token]), STEPS * epsilon * max(1.0, abs(largest))))
        return token, ended


def margins(plain: Speculator, prompt: Int32, output: Sequence[int]) -> list[Margin]:
    """Return the margin of each of the M output tokens.

    Args:
        plain: a speculator of method `none` on the model, made with `fast=False` for transformers' own passes.
        prompt: Int32[T].
        output: M ids, at least one.
    """
    recorder = _MarginRecorder(output)
    force(plain, prompt, recorder)
    return recorder.margins
