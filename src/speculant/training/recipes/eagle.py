"""EAGLE-1 with one step, and HASS with several (heads.eagle; Zhang et al., ICLR 2025, arXiv 2408.15766).

The first depth is the training of EAGLE-1: row i reads f_i and the embedding of token i + 1. Deeper ones read what the
head returned one row before, detached, and attend to the true rows up to the anchor and to the drafted ones after it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from speculant.drafters.heads.eagle import EagleHead
from speculant.drafters.heads.head import TargetParts
from speculant.training.recipe import DepthOutput, Recipe, TrainBatch


class EagleRecipe(Recipe):
    """See `training.recipe.Recipe`."""

    head: EagleHead

    def __init__(self, head: EagleHead, depth: int = 1) -> None:
        self.head, self.depth = head, depth

    def run(self, batch: TrainBatch, target: TargetParts) -> Iterator[DepthOutput]:
        layer, rotary = self.head.layer, self.head.rotary
        attention = layer.self_attn
        texts, places = batch.anchors.unbind(1)
        rows, mask, flat = _padded(texts, places, len(batch.ids))
        x = self.head.fused(target.embed(batch.ids[:, 1:]), batch.final[:, :-1])
        length = x.shape[1]
        keys, values = attention.keys_values(x, rotary.angles(torch.arange(length, device=x.device), x))
        seen = torch.arange(length, device=x.device) <= rows[..., None]  # [B, a, T]
        own_keys, own_values = list[Tensor](), list[Tensor]()
        text = torch.arange(len(rows), device=x.device)[:, None]
        given = x[text, rows]  # [B, a, D]
        for depth in range(1, self.depth + 1):
            at = rows + depth - 1
            angles = rotary.angles(at, given)
            if depth > 1:
                key, value = attention.keys_values(given, angles)
                own_keys.append(key)
                own_values.append(value)
            queries = attention.queries(given, angles)
            attended = _attend(queries, keys, values, seen, own_keys, own_values)
            output = layer.finish(given, attention.o_proj(attended.transpose(1, 2).flatten(2)))
            found = output[mask][flat]
            true = batch.final[texts, places + depth]
            with torch.no_grad():
                wanted = target.project(true)
            yield DepthOutput(
                logits=target.project(found),
                target=wanted,
                tokens=batch.ids[texts, places + depth + 1],
                extra=smooth_l1_loss(found.float(), true.float()),
            )
            following = batch.ids[text, (at + 2).clamp(max=batch.ids.shape[1] - 1)]
            given = self.head.fused(target.embed(following), output.detach())


def _padded(texts: Tensor, places: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the anchors by text: positions [B, a], which of them are anchors, and the way back to the flat order."""
    order = torch.argsort(texts, stable=True)
    sizes = torch.bincount(texts, minlength=count)
    most = int(sizes.max())
    mask = torch.arange(most, device=texts.device) < sizes[:, None]
    rows = torch.zeros(count, most, dtype=torch.long, device=texts.device)
    rows[mask] = places[order]
    return rows, mask, torch.argsort(order)


def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor, own_keys: list[Tensor], own_values: list[Tensor]
) -> Tensor:
    """Return what queries [B, H, a, d] attend to: true rows as far as they are seen, and drafted rows of their own."""
    groups = queries.shape[1] // keys.shape[1]
    keys, values = (each.repeat_interleave(groups, 1) for each in (keys, values))
    scale = queries.shape[-1] ** -0.5
    scores = (queries @ keys.transpose(2, 3)) * scale
    scores = scores.masked_fill(~seen[:, None], -torch.inf)
    own = [(queries * key.repeat_interleave(groups, 1)).sum(-1, keepdim=True) * scale for key in own_keys]
    weights = torch.cat([scores, *own], dim=-1).float().softmax(-1).to(values.dtype)
    attended = weights[..., : keys.shape[2]] @ values
    for place, value in enumerate(own_values):
        attended = attended + weights[..., keys.shape[2] + place, None] * value.repeat_interleave(groups, 1)
    return attended
