"""Rows of texts on a head of EAGLE's family, and the rows that it drafts below their anchors, for training.

As in drafting, rows of committed tokens read the target's states, and a drafted row attends to the rows up to its
anchor and to the drafted rows in between: the diagonal mask of EAGLE-3's training-time test (arXiv 2503.01840, section
3.2). Keys and values are computed once for all rows; everything else in the last layer, only at the anchors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from speculant.drafters.heads.feature_head import FeatureHead
from speculant.drafters.heads.layers import Attention
from speculant.drafters.heads.training.anchor_grid import AnchorGrid

Pair = tuple[Tensor, Tensor]


class Unrolled:
    """The rows of one batch. Gradients flow through all of them."""

    def __init__(self, head: FeatureHead, anchors: Tensor, texts: int) -> None:
        """Set the anchors.

        Args:
            head: the head, whose weights are used, but not its caches.
            anchors: Int64[A, 2], text and position; in any order, any number per text.
            texts: B.
        """
        self._head, self._drafted = head, 0
        self._grid = AnchorGrid(anchors, texts)
        self._places = self._grid.places
        self._rows: list[Pair] = []  # keys and values [B, H_kv, T, d] of each layer
        self._own: list[list[Pair]] = [[] for _ in head.layers]  # [B, H_kv, a, d], for each layer and drafted row

    def start(self, embeddings: Tensor, features: Tensor) -> Tensor:
        """Run the rows of the texts; return the features [A, D] that the anchors' rows pass on.

        Args:
            embeddings: [B, T, D], embeddings of the token after each.
            features: [B, T, D].
        """
        x, length, last = features, features.shape[1], len(self._head.layers) - 1
        places = torch.arange(length, device=x.device)
        angles = self._head.rotary.angles(places, x)
        text = torch.arange(len(x), device=x.device)[:, None]
        for index in range(last + 1):
            layer = self._head.layer(index)
            residual, given = self._head.layer_input(index, embeddings, x)
            self._rows.append(layer.self_attn.keys_values(given, angles))
            if index < last:
                queries = layer.self_attn.queries(given, angles)
                attended = layer.self_attn.attend(queries, *self._rows[index], places <= places[:, None])
            else:
                residual, given = residual[text, self._places], given[text, self._places]
                attended = self._attend(
                    index, layer.self_attn, given, (angles[0][self._places], angles[1][self._places])
                )
            x = layer.finish(residual, attended)
        return self._head.carry(self._grid.flat(x))

    def follow(self, embeddings: Tensor, features: Tensor) -> Tensor:
        """Run the next drafted row of every anchor; return the features [A, D] that they pass on.

        Args:
            embeddings: [A, D], embeddings of the token after each.
            features: [A, D], features passed on by the previous rows.
        """
        self._drafted += 1
        embeddings, x = self._grid.spread(embeddings), self._grid.spread(features)
        angles = self._head.rotary.angles(self._places + self._drafted, x)
        for index in range(len(self._head.layers)):
            layer = self._head.layer(index)
            residual, given = self._head.layer_input(index, embeddings, x)
            self._own[index].append(layer.self_attn.keys_values(given, angles))
            x = layer.finish(residual, self._attend(index, layer.self_attn, given, angles))
        return self._head.carry(self._grid.flat(x))

    def _attend(self, index: int, attention: Attention, given: Tensor, angles: Pair) -> Tensor:
        """Return the attention output [B, a, D] over a layer's rows up to the anchors and the drafted rows below."""
        keys, values = self._rows[index]
        queries = attention.queries(given, angles) * attention.shape.head_dim**-0.5  # [B, H, a, d]
        count, heads, wide, length = len(queries), keys.shape[1], queries.shape[2], keys.shape[2]
        grouped = queries.reshape(count, heads, -1, wide, queries.shape[3])  # [B, H_kv, G, a, d]
        scores = (grouped.flatten(2, 3) @ keys.transpose(2, 3)).reshape(count, heads, -1, wide, length)
        seen = torch.arange(length, device=keys.device) <= self._places[..., None]  # Bool[B, a, T]
        scores = scores.masked_fill(~seen[:, None, None], -torch.inf)
        own = [(grouped * key[:, :, None]).sum(-1, keepdim=True) for key, _ in self._own[index]]
        weights = torch.cat([scores.float(), *(each.float() for each in own)], dim=-1).softmax(-1).to(values.dtype)
        found = (weights[..., :length].flatten(2, 3) @ values).reshape_as(grouped)
        for place, (_, value) in enumerate(self._own[index]):
            found = found + weights[..., length + place, None] * value[:, :, None]
        output: Tensor = attention.o_proj(found.flatten(1, 2).transpose(1, 2).flatten(2))
        return output
