"""Training of Medusa heads (heads.medusa): each predicts its own token from the anchor's state.

The target stays as it is, which the authors call Medusa-1 (Cai et al. 2024, arXiv 2401.10774, section 2.2.1).

Residual blocks begin as the identity, so a head begins with what the target itself predicts for the root.
"""

from __future__ import annotations

from collections.abc import Iterator

from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.medusa.head import MedusaHead, MedusaShape
from speculant.drafters.heads.training.depths import depth_output
from speculant.drafters.heads.training.recipe import DepthOutput, Recipe, TrainBatch
from speculant.drafters.heads.training.shapes import HEADS, copy_projections


class MedusaRecipe(Recipe):
    """See `drafters.heads.training.recipe.Recipe`."""

    head: MedusaHead

    def __init__(self, head: MedusaHead, depth: int) -> None:
        """Take the heads; `depth` is how many of them are trained, the first ones."""
        self.head, self.depth = head, depth

    def run(self, batch: TrainBatch, target: TargetParts) -> Iterator[DepthOutput]:
        texts, rows = batch.anchors.unbind(1)
        features = batch.final[texts, rows]
        for depth in range(1, self.depth + 1):
            logits = self.head.project(features, depth - 1, target)
            yield depth_output(logits, batch, target, depth, ids=self.head.ids)


def new_medusa(target: TargetParts, heads: int = HEADS, *, blocks: int = 1, own: bool = False) -> MedusaHead:
    """Return Medusa heads for a target.

    Args:
        target: of the heads.
        heads: how many.
        blocks: residual blocks of each.
        own: whether each has a copy of the target's output projection, as in the paper; else the target's is used,
            which takes V D less weights for each head.
    """
    head = MedusaHead(
        MedusaShape(
            hidden=target.hidden_size,
            vocabulary=target.vocabulary,
            heads=heads,
            blocks=blocks,
            projection="own" if own else "target",
        )
    )
    copy_projections(head, target)
    return head
