"""What joint training changed: the tuned model's distribution compared with the original's on held-out texts."""

from __future__ import annotations

import math

import torch

from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.training.depths import anchor_target, anchor_tokens
from speculant.training.features import Features
from speculant.training.joint.backbone import Backbone


@torch.no_grad()
def measure_changes(backbone: Backbone, features: Features, target: TargetParts) -> dict[str, float]:
    """Return figures over the anchors of held-out texts, which the original wrote.

    Returns:
        `kl`: mean KL(original || tuned) per token in nats; `agreement`: share of positions with the same most probable
        token; `perplexity` and `perplexity_tuned`: of the texts under both.
    """
    sums, count = torch.zeros(4, dtype=torch.float64), 0
    for group in range(len(features.groups)):
        batch = features.held_out_batch(group)
        texts, rows = batch.anchors.unbind(1)
        p = anchor_target(batch, target, 0).float().log_softmax(-1)
        q = backbone.parts.project(backbone.states(batch.ids)[texts, rows]).float().log_softmax(-1)
        tokens = anchor_tokens(batch, 1)[:, None]
        sums += (
            torch.stack(
                [
                    (p.exp() * (p - q)).sum(),
                    (p.argmax(-1) == q.argmax(-1)).sum(),
                    -p.gather(1, tokens).sum(),
                    -q.gather(1, tokens).sum(),
                ]
            )
            .double()
            .cpu()
        )
        count += len(tokens)
    kl, agreement, nats, tuned = (sums / max(1, count)).tolist()
    return {
        "kl": kl,
        "agreement": agreement,
        "perplexity": math.exp(nats),
        "perplexity_tuned": math.exp(tuned),
        "anchors": count,
    }
