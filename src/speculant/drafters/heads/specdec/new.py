"""New drafters of SpecDec for a target."""

from __future__ import annotations

from torch import nn

from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.specdec.head import SpecDecHead
from speculant.drafters.heads.training.shapes import (
    SPREAD,
    copy_embeddings,
    copy_projection,
    spread_weights,
    target_shape,
)


def new_specdec(target: TargetParts, *, encoder: int = 4, decoder: int = 1, block: int = 8) -> SpecDecHead:
    """Return a drafter of the target's sizes; embeddings and output projection begin as the target's."""
    head = SpecDecHead(
        target_shape(target), vocabulary=target.vocabulary, encoder=encoder, decoder=decoder, block=block
    )
    spread_weights(head)
    nn.init.normal_(head.embed_tokens.weight, std=SPREAD)
    copy_embeddings(head.embed_tokens, target)
    copy_projection(head.lm_head, target)
    return head
