"""The training of early-exit adapters: on the target's own distribution of the next token, at every row.

Kangaroo (Liu et al. 2024, arXiv 2404.18911, section 3.2) minimises the cross-entropy between the target's distribution
and the adapter's, which has the same gradient as "kl". The states of drafted tokens are the target's own, so the rows
of a draft at any depth equal those of a text, and training one depth is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from speculant.core.errors import UsageError
from speculant.drafters.heads.exit.head import ExitHead
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.training.depths import depth_output
from speculant.drafters.heads.training.recipe import DepthOutput, Recipe, TrainBatch
from speculant.drafters.heads.training.shapes import SPREAD, spread_weights, target_shape


class ExitRecipe(Recipe):
    """See `drafters.heads.training.recipe.Recipe`."""

    def __init__(self, head: ExitHead, depth: int = 1) -> None:
        """Set the head, and the number of depths to train or measure."""
        self.head, self.depth = head, depth

    def run(self, batch: TrainBatch, target: TargetParts) -> Iterator[DepthOutput]:
        head = self.head
        assert isinstance(head, ExitHead)
        texts, rows = batch.anchors.unbind(1)
        states = batch.hidden[:, :, 0].to(head.norm.weight.dtype)  # [B, T, D]
        layer, places = head.layer, torch.arange(states.shape[1], device=states.device)
        angles, given = head.rotary.angles(places, states), layer.input_layernorm(states)
        keys, values = layer.self_attn.keys_values(given, angles)
        queries = layer.self_attn.queries(given, angles)
        attended = layer.self_attn.attend(queries, keys, values, places <= places[:, None])
        found = head.finish(states, attended)
        for depth in range(1, self.depth + 1):
            yield depth_output(target.project(found[texts, rows + depth]), batch, target, depth)


def new_exit(target: TargetParts, *, layer: int = 0) -> ExitHead:
    """Return an adapter that initially passes the exit's states through nearly unchanged.

    Args:
        target: the target model's parts.
        layer: number of first layers below the adapter; 0 for a third of them.

    Raises:
        UsageError: the target has fewer layers, or no more than these.
    """
    exit_layer = layer or max(1, round(target.layers / 3))
    if not 1 <= exit_layer < target.layers:
        raise UsageError(f"layer must be from 1 to {target.layers - 1} for this target, not {layer}.")
    head = ExitHead(target_shape(target), exit_layer=exit_layer)
    spread_weights(head)
    final: Any = target.new_norm()
    with torch.no_grad():
        nn.init.normal_(head.layer.self_attn.o_proj.weight, std=SPREAD / 10)
        if getattr(final, "weight", None) is not None and final.weight.shape == head.norm.weight.shape:
            head.norm.weight.copy_(final.weight.detach().float())
    return head
