"""Logits processors of the OpenAI and vLLM APIs that transformers lacks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import LogitsProcessor


class LogitBias(LogitsProcessor):  # type: ignore[misc]
    """Adds a bias to the logits of some tokens."""

    def __init__(self, bias: Mapping[int, float], device: torch.device) -> None:
        """Take the bias of each token id, and the device on which logits are processed."""
        self._ids = torch.tensor(list(bias), dtype=torch.long, device=device)
        self._values = torch.tensor(list(bias.values()), dtype=torch.float32, device=device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores [R, V] with the bias added."""
        return scores.index_add(-1, self._ids, self._values.to(scores.dtype).expand(len(scores), -1))


class OutputPenalties(LogitsProcessor):  # type: ignore[misc]
    """Penalises tokens by how often they occur in the generated text; the prompt does not count, as in OpenAI's API.

    logit -= frequency * count + presence * (count > 0)
    """

    def __init__(self, prompt: int, *, presence: float = 0.0, frequency: float = 0.0) -> None:
        """Take the penalties.

        Args:
            prompt: the length of the prompt.
            presence: penalty applied once to each token that occurs.
            frequency: penalty per occurrence.
        """
        self._prompt, self._presence, self._frequency = prompt, presence, frequency

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores [1, V] after a text [1, T], prompt included."""
        tokens, counts = torch.unique(input_ids[0, self._prompt :], return_counts=True)
        return scores.index_add(-1, tokens, -(self._presence + self._frequency * counts.to(scores.dtype))[None])
