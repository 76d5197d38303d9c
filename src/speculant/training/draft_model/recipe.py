"""The recipe of draft models: distillation of next-token distributions on texts written or scored by the target.

- Seq-KD (Kim and Rush 2016, arXiv 1606.07947): cross-entropy on texts that the target wrote, the loss "ce".
- DistillSpec (Zhou et al. 2024, arXiv 2310.08461): a divergence, on texts that the draft model continues itself;
  `training.student_features` selects the texts of a batch.

A draft model reads all tokens before the one that it drafts, so one pass over a text gives every depth.
"""

from __future__ import annotations

from collections.abc import Iterator

from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.training.depths import depth_output
from speculant.drafters.heads.training.recipe import DepthOutput, Recipe, TrainBatch
from speculant.training.student import Student


class DraftModelRecipe(Recipe):
    """See `drafters.heads.training.recipe.Recipe`."""

    head: Student

    def __init__(self, head: Student, depth: int) -> None:
        """Take the draft model, and the number of depths to train or measure."""
        self.head, self.depth = head, depth

    def run(self, batch: TrainBatch, target: TargetParts) -> Iterator[DepthOutput]:
        texts, rows = batch.anchors.unbind(1)
        states = self.head.states(batch.ids)
        for depth in range(1, self.depth + 1):
            logits = self.head.project(states[texts, rows + depth])
            yield depth_output(logits[:, : target.vocabulary], batch, target, depth)
