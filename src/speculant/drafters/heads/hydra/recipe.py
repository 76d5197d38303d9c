"""Training of Hydra heads (heads.hydra): each reads the anchor's state and the tokens of the text before its own.

The decoder layer of Hydra++ runs once over the whole texts (Ankner et al. 2024, arXiv 2402.05109, section 4). Its
dropouts take part while the head is in training mode.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.hydra.head import LAST, HydraHead
from speculant.drafters.heads.training.depths import anchor_tokens, depth_output
from speculant.drafters.heads.training.recipe import DepthOutput, Recipe, TrainBatch


class HydraRecipe(Recipe):
    """See `drafters.heads.training.recipe.Recipe`."""

    head: HydraHead

    def __init__(self, head: HydraHead, depth: int) -> None:
        """Take the heads; `depth` is how many of them are trained, the first ones."""
        self.head, self.depth = head, depth

    def run(self, batch: TrainBatch, target: TargetParts) -> Iterator[DepthOutput]:
        texts, rows = batch.anchors.unbind(1)
        features = batch.final if self.head.shape.layer == LAST else batch.hidden[:, :, 0]
        features = features.to(self.head.dtype)
        if (prefix := self.head.prefix_embeding_layer) is not None:
            features = prefix(features)
        contexts = features[texts, rows]
        for depth in range(1, self.depth + 1):
            with torch.no_grad():
                embeddings = target.embed(anchor_tokens(batch, depth))
            contexts = torch.cat([contexts, embeddings.to(contexts.dtype)], dim=-1)
            yield depth_output(self.head.project(contexts, depth - 1), batch, target, depth)
