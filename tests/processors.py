"""Logits processors that tests use."""

from __future__ import annotations

import torch
from transformers import LogitsProcessor

from models import VOCABULARY


class Shifting(LogitsProcessor):
    """Has state: pushes down a token that depends on how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        scores = scores.clone()
        scores[:, self.calls * 7 % VOCABULARY] -= 3.0
        return scores
