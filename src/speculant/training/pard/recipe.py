"""Training of PARD: blocks of masks at random anchors in texts that the target wrote.

An et al. 2025, arXiv 2504.18583, section 3. A text and the masks of all its anchors are one pass. The authors train
every position and drop some of the deeper ones at random (COD); here the anchors are the sample, the same for all
depths.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.training.depths import depth_output
from speculant.drafters.heads.training.recipe import DepthOutput, Recipe, TrainBatch
from speculant.training.pard.model import PardStudent, block_rows


class PardRecipe(Recipe):
    """See `drafters.heads.training.recipe.Recipe`."""

    head: PardStudent

    def __init__(self, head: PardStudent, depth: int) -> None:
        """Take the model, and the number of depths to train or measure."""
        self.head, self.depth = head, depth

    def run(self, batch: TrainBatch, target: TargetParts) -> Iterator[DepthOutput]:
        for depth, states in enumerate(self._states(batch), start=1):
            yield depth_output(self.head.project(states)[:, : target.vocabulary], batch, target, depth)

    def _states(self, batch: TrainBatch) -> Iterator[Tensor]:
        """Yield the states [A, D'] from which each depth is drafted: those of the roots, then those of the masks."""
        (texts, rows), count = batch.anchors.unbind(1), self.depth - 1
        length = batch.ids.shape[1]
        slots = (texts == texts[:, None]).tril(-1).sum(1)  # how many anchors of the same text come before
        roots = rows.new_full((len(batch.ids), int(slots.max()) + 1 if len(slots) else 0), -1)
        roots[texts, slots] = rows + 1
        after = roots.clamp(min=0)[..., None] + torch.arange(1, count + 1, device=rows.device)
        positions = torch.cat([torch.arange(length, device=rows.device).expand(len(roots), -1), after.flatten(1)], 1)
        masks = torch.full_like(after.flatten(1), self.head.mask)
        states = self.head.block_states(torch.cat([batch.ids, masks], 1), positions, block_rows(length, roots, count))
        yield states[texts, rows + 1]
        for place in range(count):
            yield states[texts, length + slots * count + place]
