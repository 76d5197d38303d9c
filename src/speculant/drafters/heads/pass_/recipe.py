"""Training of PaSS: cross-entropy at look-ahead rows after random anchors; the target's weights stay unchanged.

A text and the rows of all its anchors are one pass: the rows of an anchor see the text up to its root and one another.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from speculant.core.errors import UsageError
from speculant.drafters.heads.head import TargetParts, TargetPasses
from speculant.drafters.heads.pass_.head import PaSSHead
from speculant.drafters.heads.training.depths import anchor_target, depth_output
from speculant.drafters.heads.training.recipe import DepthOutput, Recipe, TrainBatch


class PaSSRecipe(Recipe):
    """See `drafters.heads.training.recipe.Recipe`. The first depth is the target's own, without a gradient."""

    def __init__(self, head: PaSSHead, depth: int | None = None) -> None:
        """Set the head; `depth` None trains all its embeddings."""
        if depth is not None and not 2 <= depth <= head.depth:
            raise UsageError(
                f"depth must be from 2 to {head.depth}, one more than the number of embeddings, not {depth}."
            )
        self.head, self.depth = head, depth or head.depth

    def run(self, batch: TrainBatch, target: TargetParts) -> Iterator[DepthOutput]:
        assert isinstance(target, TargetPasses)
        order, found = list[Tensor](), list[Tensor]()
        for text in range(len(batch.ids)):
            places = (batch.anchors[:, 0] == text).nonzero()[:, 0]
            if len(places):
                order.append(places)
                found.append(self._text(batch.ids[text], batch.anchors[places, 1], target))
        logits = torch.cat(found)[torch.cat(order).argsort()]
        yield depth_output(anchor_target(batch, target, 1), batch, target, 1)
        for depth in range(2, self.depth + 1):
            yield depth_output(logits[:, depth - 2], batch, target, depth)

    def _text(self, ids: Tensor, rows: Tensor, target: TargetPasses) -> Tensor:
        """Return the logits [a, L, V] of the look-ahead rows after the anchors of one text."""
        assert isinstance(self.head, PaSSHead)
        count, length = self.depth - 1, len(ids)
        further = self.head.look_ahead[:count]
        embeddings = target.embed(ids).detach()
        given = torch.cat([embeddings, further.to(embeddings).repeat(len(rows), 1)])
        positions = (rows[:, None] + 2 + torch.arange(count, device=ids.device)).flatten()
        places = torch.arange(length, device=ids.device)
        seen = torch.zeros(len(given), len(given), dtype=torch.bool, device=ids.device)
        seen[:length, :length] = places <= places[:, None]
        seen[length:, :length] = (places <= rows[:, None] + 1).repeat_interleave(count, 0)
        own = torch.ones(count, count, device=ids.device).tril()
        seen[length:, length:] = torch.kron(torch.eye(len(rows), device=ids.device), own).bool()
        output = target.run(given[None], torch.cat([places, positions])[None], seen[None, None])
        return output[0, length:].reshape(len(rows), count, -1)


def new_pass(target: TargetParts, *, count: int = 4) -> PaSSHead:
    """Return `count` look-ahead embeddings, which start as the mean of the target's embeddings, plus noise."""
    head = PaSSHead(count, target.hidden_size, vocabulary=target.vocabulary)
    with torch.no_grad():
        table = target.embed(torch.arange(target.vocabulary, device=target.projection().device))
        noise = torch.randn(head.look_ahead.shape) * table.std().cpu()
        head.look_ahead.copy_(table.mean(0).cpu() + 0.1 * noise)
    return head
