"""How EAGLE-3 is trained: the training-time test (Li et al. 2025, arXiv 2503.01840, section 3.2).

The head goes on from its own output for several depths, seven in the paper, while the tokens stay the text's; gradients
flow through all depths. There is no loss of hidden states. Targets are the target's logits over the head's vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from speculant.drafters.heads.eagle3.head import Eagle3Head
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.training.recipe import DepthOutput, Recipe, TrainBatch
from speculant.drafters.heads.training.unrolled import Unrolled


class Eagle3Recipe(Recipe):
    """See `drafters.heads.training.recipe.Recipe`."""

    head: Eagle3Head

    def __init__(self, head: Eagle3Head, depth: int = 7) -> None:
        """Take the head, and how many depths are trained."""
        self.head, self.depth = head, depth

    def run(self, batch: TrainBatch, target: TargetParts) -> Iterator[DepthOutput]:
        text, place = batch.anchors.unbind(1)
        rows = Unrolled(self.head, batch.anchors, len(batch.ids))
        features = self.head.features(batch.hidden[:, :-1], target)
        found = rows.start(self.head.embed(batch.ids[:, 1:], target), features)
        for depth in range(1, self.depth + 1):
            if depth > 1:
                found = rows.follow(*self._next_row(batch.ids[text, place + depth], found, target))
            wanted, tokens = self._wanted(batch, depth, target)
            yield DepthOutput(logits=self.head.logits(found, target), target=wanted, tokens=tokens)

    def _next_row(self, tokens: Tensor, found: Tensor, target: TargetParts) -> tuple[Tensor, Tensor]:
        """Return embeddings and features [A, D] of the next row, given the tokens after it and what was passed on."""
        return self.head.embed(tokens, target), found

    def _wanted(self, batch: TrainBatch, depth: int, target: TargetParts) -> tuple[Tensor, Tensor]:
        """Return the target's logits [A, V'] at a depth, and the text's tokens Int64[A] in the head's vocabulary."""
        text, place = batch.anchors.unbind(1)
        tokens, ids = batch.ids[text, place + depth + 1], self.head.ids
        with torch.no_grad():
            wanted = target.project(batch.final[text, place + depth])
        if ids is None:
            return wanted, tokens
        numbers = torch.full((target.vocabulary,), -1, device=ids.device)
        numbers[ids] = torch.arange(len(ids), device=ids.device)
        return wanted[:, ids], numbers[tokens]
