"""Training of MLP speculators (heads.mlp): all steps after an anchor, on the tokens of the text.

Wertheimer et al. 2024, arXiv 2404.19124, section 3, train first on other texts and then on the target's own.
"""

from __future__ import annotations

from collections.abc import Iterator

from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.mlp.head import MLPHead, MLPShape
from speculant.drafters.heads.training.depths import anchor_tokens, depth_output
from speculant.drafters.heads.training.recipe import DepthOutput, Recipe, TrainBatch
from speculant.drafters.heads.training.shapes import HEADS


class MLPRecipe(Recipe):
    """See `drafters.heads.training.recipe.Recipe`."""

    head: MLPHead

    def __init__(self, head: MLPHead, depth: int) -> None:
        """Set the head; the first `depth` of its steps are trained."""
        self.head, self.depth = head, depth

    def run(self, batch: TrainBatch, target: TargetParts) -> Iterator[DepthOutput]:
        texts, rows = batch.anchors.unbind(1)
        states = self.head.scale_features(batch.final[texts, rows])
        for depth in range(1, self.depth + 1):
            states = self.head.step(states, anchor_tokens(batch, depth), depth - 1, target)
            yield depth_output(self.head.project(states, depth - 1, target), batch, target, depth)


def new_mlp(target: TargetParts, steps: int = HEADS, *, inner: int = 0, tied: bool = False) -> MLPHead:
    """Return an MLP speculator for a target, with a state of size D unless `inner` says otherwise."""
    return MLPHead(
        MLPShape(
            hidden=target.hidden_size,
            inner=inner or target.hidden_size,
            vocabulary=target.vocabulary,
            steps=steps,
            tied=tied,
            scaled=True,
        )
    )
