"""Training of Hydra heads (heads.hydra): each reads the anchor's state and the text's tokens before its own.

The decoder layer of Hydra++ runs once over whole texts (Ankner et al. 2024, arXiv 2402.05109, section 4). Its dropouts
are active while the head is in training mode.

Residual blocks start as the identity, so a head starts with what the target itself predicts for the root.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from speculant.core.engine import LAST_LAYER
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.hydra.head import HydraHead, HydraShape
from speculant.drafters.heads.layers import LayerShape
from speculant.drafters.heads.residual import ResBlock
from speculant.drafters.heads.training.depths import anchor_tokens, depth_output
from speculant.drafters.heads.training.recipe import DepthOutput, Recipe, TrainBatch
from speculant.drafters.heads.training.shapes import HEADS, copy_projections, target_shape


class HydraRecipe(Recipe):
    """See `drafters.heads.training.recipe.Recipe`."""

    head: HydraHead

    def __init__(self, head: HydraHead, depth: int) -> None:
        """Set the heads; the first `depth` of them are trained."""
        self.head, self.depth = head, depth

    def run(self, batch: TrainBatch, target: TargetParts) -> Iterator[DepthOutput]:
        texts, rows = batch.anchors.unbind(1)
        features = batch.final if self.head.shape.layer == LAST_LAYER else batch.hidden[:, :, 0]
        features = features.to(self.head.dtype)
        if (prefix := self.head.prefix_embeding_layer) is not None:
            features = prefix(features)
        contexts = features[texts, rows]
        for depth in range(1, self.depth + 1):
            with torch.no_grad():
                embeddings = target.embed(anchor_tokens(batch, depth))
            contexts = torch.cat([contexts, embeddings.to(contexts.dtype)], dim=-1)
            yield depth_output(self.head.project(contexts, depth - 1, target), batch, target, depth)


_SPREAD = 0.02  # initial standard deviation of weights that read drafted tokens


def new_hydra(
    target: TargetParts, heads: int = HEADS, *, blocks: int = 1, prefix: LayerShape | None = None
) -> HydraHead:
    """Return Hydra heads for a target.

    Args:
        target: target of the heads.
        heads: number of heads.
        blocks: residual blocks per head.
        prefix: shape of the decoder layer of Hydra++, with a dropout rate of 0.2 as in the authors' training; None for
            Hydra.
    """
    head = HydraHead(
        HydraShape(
            hidden=target.hidden_size,
            vocabulary=target.vocabulary,
            heads=heads,
            blocks=blocks,
            prefix=prefix,
            dropout=0.0 if prefix is None else 0.2,
        )
    )
    copy_projections(head, target)
    for block in head.modules():
        if isinstance(block, ResBlock) and block.res_connection is not None:
            nn.init.normal_(block.res_connection.weight, std=_SPREAD)
            nn.init.zeros_(block.res_connection.bias)
            with torch.no_grad():
                block.res_connection.weight[:, : target.hidden_size] += torch.eye(target.hidden_size)
    return head


def new_hydra_plus(target: TargetParts, heads: int = HEADS) -> HydraHead:
    """Return Hydra++ heads with a decoder layer like the target's, and four blocks each, as in the authors' heads."""
    return new_hydra(target, heads, blocks=4, prefix=target_shape(target))
