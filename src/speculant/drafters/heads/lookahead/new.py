"""New look-ahead embeddings for a target."""

from __future__ import annotations

import torch

from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.lookahead.head import LookaheadHead


def new_lookahead(target: TargetParts, *, count: int = 4) -> LookaheadHead:
    """Return so many look-ahead embeddings, which begin as the mean of the target's, plus noise."""
    head = LookaheadHead(count, target.hidden_size, vocabulary=target.vocabulary)
    with torch.no_grad():
        table = target.embed(torch.arange(target.vocabulary, device=target.projection().device))
        noise = torch.randn(head.look_ahead.shape) * table.std().cpu()
        head.look_ahead.copy_(table.mean(0).cpu() + 0.1 * noise)
    return head
