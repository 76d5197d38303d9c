"""Training of SpecDec's drafter: blocks of masks at random anchors in texts that the target wrote (Seq-KD).

The authors also show the decoder some of the true tokens at first (glancing); that is not done here.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from speculant.core.errors import UsageError
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.specdec.head import NO_SOURCE, SpecDecHead
from speculant.drafters.heads.training.depths import depth_output
from speculant.drafters.heads.training.recipe import DepthOutput, Recipe, TrainBatch
from speculant.drafters.heads.training.shapes import (
    SPREAD,
    copy_embeddings,
    copy_projection,
    spread_weights,
    target_shape,
)


class SpecDecRecipe(Recipe):
    """See `drafters.heads.training.recipe.Recipe`."""

    def __init__(self, head: SpecDecHead, depth: int | None = None) -> None:
        """Set the head; `depth` None trains all that its block drafts."""
        if depth is not None and not 1 <= depth <= head.depth:
            raise UsageError(
                f"depth must be from 1 to {head.depth}, the tokens that the head drafts per block, not {depth}."
            )
        self.head, self.depth = head, depth or head.depth

    def run(self, batch: TrainBatch, target: TargetParts) -> Iterator[DepthOutput]:
        assert isinstance(self.head, SpecDecHead)
        logits = self._blocks(self.head, batch)
        for depth in range(1, self.depth + 1):
            yield depth_output(logits[:, depth - 1], batch, target, depth)

    def _blocks(self, head: SpecDecHead, batch: TrainBatch) -> Tensor:
        """Return the logits [A, K, V] of the blocks after the roots."""
        texts, rows = batch.anchors.unbind(1)
        places = torch.arange(batch.ids.shape[1], device=batch.ids.device)
        source = NO_SOURCE
        if head.source:
            assert batch.source is not None
            source = head.read_source(batch.source.states.to(head.lm_head.weight), batch.source.seen)
        memory = head.encode(batch.ids, places, lambda _, *new: new, places <= places[:, None], source)

        def join(index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            found_keys, found_values = memory[index - len(head.encoder)]
            return torch.cat([found_keys[texts], keys], -2), torch.cat([found_values[texts], values], -2)

        positions = rows[:, None] + 2 + torch.arange(head.depth, device=rows.device)
        seen = (places <= rows[:, None] + 1)[:, None].expand(-1, head.depth, -1)
        own = torch.ones(len(rows), head.depth, head.depth, dtype=torch.bool, device=rows.device)
        return head.fill(positions, join, torch.cat([seen, own], dim=-1), source.of(texts))


def new_specdec(target: TargetParts, *, encoder: int = 4, decoder: int = 1, block: int = 8) -> SpecDecHead:
    """Return a drafter of the target's sizes; embeddings and output projection start as copies of the target's."""
    head = SpecDecHead(
        target_shape(target),
        vocabulary=target.vocabulary,
        encoder=encoder,
        decoder=decoder,
        block=block,
        source=target.source_size,
    )
    spread_weights(head)
    nn.init.normal_(head.embed_tokens.weight, std=SPREAD)
    copy_embeddings(head.embed_tokens, target)
    copy_projection(head.lm_head, target)
    return head
