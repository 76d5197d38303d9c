"""New heads that read the text: GLIDE, PaSS and SpecDec's drafter."""

from __future__ import annotations

import torch
from torch import nn

from speculant.drafters.heads.glide import GlideHead, target_cross_shape
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.lookahead_embeddings import LookaheadHead
from speculant.drafters.heads.specdec import SpecDecHead
from speculant.training.builders.shapes import SPREAD, spread_weights, target_shape


def new_glide(target: TargetParts) -> GlideHead:
    """Return a GLIDE head of the target's sizes; embeddings and output projection begin as the target's."""
    head = GlideHead(target_shape(target), target_cross_shape(target), vocabulary=target.vocabulary)
    spread_weights(head)
    _copy_embeddings(head.embed_tokens, target)
    _copy_projection(head.lm_head, target)
    return head


def new_lookahead(target: TargetParts, *, count: int = 4) -> LookaheadHead:
    """Return so many look-ahead embeddings, which begin as the mean of the target's, plus noise."""
    head = LookaheadHead(count, target.hidden_size, vocabulary=target.vocabulary)
    with torch.no_grad():
        table = target.embed(torch.arange(target.vocabulary, device=target.projection().device))
        noise = torch.randn(head.look_ahead.shape) * table.std().cpu()
        head.look_ahead.copy_(table.mean(0).cpu() + 0.1 * noise)
    return head


def new_specdec(target: TargetParts, *, encoder: int = 4, decoder: int = 1, block: int = 8) -> SpecDecHead:
    """Return a drafter of the target's sizes; embeddings and output projection begin as the target's."""
    head = SpecDecHead(
        target_shape(target), vocabulary=target.vocabulary, encoder=encoder, decoder=decoder, block=block
    )
    spread_weights(head)
    nn.init.normal_(head.embed_tokens.weight, std=SPREAD)
    _copy_embeddings(head.embed_tokens, target)
    _copy_projection(head.lm_head, target)
    return head


def _copy_embeddings(table: nn.Embedding, target: TargetParts) -> None:
    with torch.no_grad():
        ids = torch.arange(target.vocabulary, device=target.projection().device)
        table.weight[: target.vocabulary] = target.embed(ids).float().cpu()


def _copy_projection(projection: nn.Linear, target: TargetParts) -> None:
    with torch.no_grad():
        projection.weight.copy_(target.projection().detach().float().cpu())
