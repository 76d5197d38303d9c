"""Shared parts of recipes whose heads draft a whole block after an anchor: the target's output at each depth."""

from __future__ import annotations

import torch
from torch import Tensor

from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.training.recipe import DepthOutput, TrainBatch


def anchor_tokens(batch: TrainBatch, offset: int) -> Tensor:
    """Return Int64[A], the tokens `offset` positions after the anchors' rows; 1 is the root."""
    return batch.ids[batch.anchors[:, 0], batch.anchors[:, 1] + offset]


def depth_output(
    logits: Tensor,
    batch: TrainBatch,
    target: TargetParts,
    depth: int,
    *,
    ids: Tensor | None = None,
    extra: Tensor | None = None,
) -> DepthOutput:
    """Return the output of one depth, with the target's output at the same token.

    Args:
        logits: [A, V'], logits of the head.
        batch: batch of the anchors.
        target: target of the head.
        depth: 1 for the token after the root.
        ids: Int64[V'], the target's token for each logit; None if the vocabularies are equal.
        extra: a loss of the head's own.
    """
    wanted, tokens = anchor_target(batch, target, depth), anchor_tokens(batch, depth + 1)
    if ids is not None:
        place = torch.full((target.vocabulary,), -1, device=tokens.device)
        place[ids] = torch.arange(len(ids), device=tokens.device)
        wanted, tokens = wanted[:, ids], place[tokens]
    return DepthOutput(logits, wanted[:, : logits.shape[1]], tokens, extra)


def anchor_target(batch: TrainBatch, target: TargetParts, depth: int) -> Tensor:
    """Return the target's logits [A, V] for the token at a depth."""
    with torch.no_grad():
        return target.project(batch.final[batch.anchors[:, 0], batch.anchors[:, 1] + depth]).float()
