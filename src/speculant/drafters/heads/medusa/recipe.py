"""Training of Medusa heads (heads.medusa): each predicts its own token from the anchor's state.

The target stays unchanged, which the authors call Medusa-1 (Cai et al. 2024, arXiv 2401.10774, section 2.2.1); for
Medusa-2, `training.joint` runs this recipe on a copy that learns as well.

Residual blocks start as the identity, so a head starts with what the target itself predicts for the root.
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
        """Set the heads; the first `depth` of them are trained."""
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
        target: target of the heads.
        heads: number of heads.
        blocks: residual blocks per head.
        own: whether each has a copy of the target's output projection, as in the paper; otherwise the target's is used,
            which saves V D weights per head.
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
