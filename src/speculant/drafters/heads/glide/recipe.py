"""Training of GLIDE: drafts at random anchors, which see the target's keys only up to the anchor.

The authors cut texts into blocks of 5 tokens, each of which sees the target's keys of earlier blocks; random anchors
have the same effect without fixed cuts. The target runs once more over each batch, since its keys are not among the
hidden states.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from speculant.drafters.heads.glide.cross import target_cross_shape
from speculant.drafters.heads.glide.head import GlideHead
from speculant.drafters.heads.head import TargetParts, TargetPasses
from speculant.drafters.heads.training.depths import depth_output
from speculant.drafters.heads.training.recipe import DepthOutput, Recipe, TrainBatch
from speculant.drafters.heads.training.shapes import (
    copy_embeddings,
    copy_final_norm,
    copy_projection,
    copy_weights,
    spread_weights,
    target_shape,
)


class GlideRecipe(Recipe):
    """See `drafters.heads.training.recipe.Recipe`."""

    def __init__(self, head: GlideHead, depth: int | None = None) -> None:
        """Set the head; `depth` None for the head's block."""
        self.head, self.depth = head, depth or head.cross.block

    def run(self, batch: TrainBatch, target: TargetParts) -> Iterator[DepthOutput]:
        assert isinstance(self.head, GlideHead)
        assert isinstance(target, TargetPasses)
        head, (texts, rows) = self.head, batch.anchors.unbind(1)
        places = torch.arange(batch.ids.shape[1], device=batch.ids.device)
        with torch.no_grad():
            keys, values = (each[texts] for each in target.text_keys(batch.ids, -1))
        own = [each[texts] for each in head.keys_values(head.rows(batch.ids, places))]
        positions = rows[:, None] + torch.arange(1, self.depth + 1, device=rows.device)
        ids = batch.ids[texts[:, None], positions]
        own_seen = places <= positions[..., None]
        seen = (places <= rows[:, None])[:, None].expand(-1, self.depth, -1)
        attention, cross = head.layer.self_attn, head.layer.cross_attn
        outputs = head.outputs(
            head.rows(ids, positions),
            lambda queries: attention.weigh(queries, own[0], own[1], own_seen),
            lambda queries: cross.weigh(queries, keys, values, seen),
        )
        logits = head.lm_head(outputs)
        for depth in range(1, self.depth + 1):
            yield depth_output(logits[:, depth - 1], batch, target, depth)


def new_glide(target: TargetParts) -> GlideHead:
    """Return a GLIDE head of the target's sizes, which starts as a copy of the target where it can.

    Embeddings, output projection and final norm are copied. Of a Llama-like target, so are the attention of the first
    layer, which reads embeddings as the head's does, and the rest of the last layer, whose keys the head reads.
    """
    layers, sizes = target.first_layers(target.layers) or ((), {})
    shape = target_shape(target, **{name: sizes[name] for name in ("bias", "norms") if name in sizes})
    head = GlideHead(shape, target_cross_shape(target), vocabulary=target.vocabulary)
    spread_weights(head)
    copy_embeddings(head.embed_tokens, target)
    copy_projection(head.lm_head, target)
    copy_final_norm(head.norm, target)
    if layers:
        first, last, own = layers[0], layers[-1], head.layer
        copy_weights(own, last)
        for name in ("self_attn", "input_layernorm"):
            copy_weights(own.get_submodule(name), first.get_submodule(name))
        copy_weights(own.cross_attn, last.get_submodule("self_attn"))
    return head
