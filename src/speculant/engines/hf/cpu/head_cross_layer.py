"""Compiled code for a head's decoder layer with cross-attention before its MLP, as in GLIDE.

`layer.cpp` runs the attention in one call, and what follows the cross-attention in another. Between them, PyTorch
computes the queries of the cross-attention, whose keys and values belong to the target.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from speculant.engines.hf.cpu.gqa import MAX_QUERIES, TILE, AttentionArguments
from speculant.engines.hf.cpu.head_layer import HeadLayer, LayerWeights
from speculant.engines.hf.cpu.products import DTYPES, Products


class HeadCrossLayer:
    """See `drafters.heads.head.CrossLayerCode`."""

    def __init__(self, layer: Any, products: Products) -> None:
        """Take a layer that is `computable`, with a `cross_attn`."""
        self._cross, self._native = layer.cross_attn, products.native
        self._attention = HeadLayer(layer, products, attention_alone=True)
        self._rest = LayerWeights(layer, products, output=self._cross.o_proj)
        self.maximum = self._attention.maximum

    def __call__(
        self,
        x: Tensor,
        given: Tensor,
        angles: tuple[Tensor, Tensor],
        cross: tuple[Tensor, Tensor],
        keys: Tensor,
        values: Tensor,
        length: int,
        seen: Tensor | None,
        read: tuple[Tensor, Tensor],
    ) -> Tensor | None:
        """See `drafters.heads.head.CrossLayerCode`."""
        attended = self._attention(x, given, angles, keys, values, length, seen)
        if attended is None:
            return None
        crossed = self._attend(self._cross.queries(attended, cross), *read)
        self._rest.look_up()
        y, (rows, width) = torch.empty_like(x), crossed.shape
        self._native.after_attention(
            ctypes.byref(self._rest.arguments), attended.data_ptr(), crossed.data_ptr(), y.data_ptr(), rows, width,
            torch.get_num_threads(),
        )  # fmt: skip
        return y

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return the cross-attention before its projection, [n, H * d], for queries [H, n, d]."""
        (heads, rows, head), (kv_heads, length) = queries.shape, keys.shape[:2]
        plain = all(each.dtype is queries.dtype and each.stride()[1:] == (head, 1) for each in (keys, values))
        if not plain or queries.dtype not in DTYPES or head % TILE or heads // kv_heads * rows > MAX_QUERIES:
            found: Tensor = self._cross.weigh(queries, keys, values, None)
            return found.contiguous()
        queries, y = queries.contiguous(), queries.new_empty(rows, heads * head)
        call = AttentionArguments(
            queries.data_ptr(), keys.data_ptr(), values.data_ptr(), None, y.data_ptr(),
            1, heads, kv_heads, rows, length, head, 0, keys.stride(0), 0, values.stride(0),
            0, 0, head**-0.5, queries.dtype is torch.bfloat16,
        )  # fmt: skip
        self._native.attention(ctypes.byref(call), 1, torch.get_num_threads())
        return y
