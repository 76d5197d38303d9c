"""Log-probabilities of committed tokens, computed from the logits of the pass that verified them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from speculant.core.logprobs import LogprobRecorder, TokenLogprobs
from speculant.drafters.top_tokens import best_tokens


class TopLogprobs(LogprobRecorder):
    """Records the log-probability of each token and of the `top` most probable ones, and their `ranks` if requested."""

    def __init__(self, top: int, *, ranks: bool = False) -> None:
        self._top, self._ranks = top, ranks

    def record(self, logits: Tensor, rows: Sequence[int], tokens: Sequence[int]) -> list[TokenLogprobs]:
        found = logits[torch.as_tensor(rows, device=logits.device)].float()
        found = found - found.logsumexp(-1, keepdim=True)
        own = found.gather(1, torch.as_tensor(tokens, device=logits.device)[:, None])
        ranks = (1 + (found > own).sum(-1)).tolist() if self._ranks else [0] * len(found)
        if not self._top:
            return [TokenLogprobs(value, [], [], rank) for value, rank in zip(own[:, 0].tolist(), ranks, strict=True)]
        values, ids = best_tokens(found, min(self._top, found.shape[-1]))
        every = zip(own[:, 0].tolist(), ids.tolist(), values.tolist(), ranks, strict=True)
        return [TokenLogprobs(value, top_ids, top_values, rank) for value, top_ids, top_values, rank in every]
