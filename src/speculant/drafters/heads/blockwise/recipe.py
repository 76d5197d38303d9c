"""Training of blockwise heads (heads.blockwise) with a frozen target: Stern et al. 2018, arXiv 1811.03115, section 6.

All heads are trained on every batch; the authors draw one head per batch, to save memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from speculant.drafters.heads.blockwise.head import BlockwiseHead
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.training.depths import depth_output
from speculant.drafters.heads.training.recipe import DepthOutput, Recipe, TrainBatch
from speculant.drafters.heads.training.shapes import HEADS


class BlockwiseRecipe(Recipe):
    """See `drafters.heads.training.recipe.Recipe`."""

    head: BlockwiseHead

    def __init__(self, head: BlockwiseHead, depth: int) -> None:
        """Set the heads; the first `depth` of them are trained."""
        self.head, self.depth = head, depth

    def run(self, batch: TrainBatch, target: TargetParts) -> Iterator[DepthOutput]:
        texts, rows = batch.anchors.unbind(1)
        states = self.head.states(batch.final[texts, rows], target)
        for depth in range(1, self.depth + 1):
            yield depth_output(target.project(states[:, depth - 1]), batch, target, depth)


def new_blockwise(target: TargetParts, heads: int = HEADS, *, inner: int = 0) -> BlockwiseHead:
    """Return blockwise heads for a target, each with D inner states unless `inner` says otherwise."""
    return BlockwiseHead(target.hidden_size, inner or target.hidden_size, heads)
