"""New GLIDE heads for a target."""

from __future__ import annotations

from speculant.drafters.heads.glide.head import GlideHead, target_cross_shape
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.training.shapes import copy_embeddings, copy_projection, spread_weights, target_shape


def new_glide(target: TargetParts) -> GlideHead:
    """Return a GLIDE head of the target's sizes; embeddings and output projection begin as the target's."""
    head = GlideHead(target_shape(target), target_cross_shape(target), vocabulary=target.vocabulary)
    spread_weights(head)
    copy_embeddings(head.embed_tokens, target)
    copy_projection(head.lm_head, target)
    return head
