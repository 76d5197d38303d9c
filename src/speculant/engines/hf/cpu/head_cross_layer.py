"""Compiled code for a head's decoder layer with cross-attention before its MLP, as in GLIDE, and for the norm after it.

The parts of `layer.cpp` run one after another, with attention to the text's own keys and then to the target's. PyTorch
runs dozens of operations for the same, which take several times as long as reading the weights.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from speculant.drafters.heads.layers import RMSNorm, Rotary
from speculant.engines.hf.cpu.gqa import MAX_QUERIES, TILE, AttentionArguments
from speculant.engines.hf.cpu.head_layer import LayerWeights, find_linear
from speculant.engines.hf.cpu.layer_structs import ONLY, LayerArguments, LinearArguments, PositionArguments
from speculant.engines.hf.cpu.products import Products


class HeadCrossLayer:
    """See `drafters.heads.head.CrossLayerCode`."""

    def __init__(self, layer: Any, norm: RMSNorm, rotary: Rotary, products: Products) -> None:
        """Take a layer that is `computable` with its `cross_attn`, the norm after it, and its rotary embedding."""
        self._layer, self._cross, self._norm, self._rotary = layer, layer.cross_attn, norm, rotary
        self._native, self._shape = products.native, layer.cross_attn.shape
        self._own, self._rest = LayerWeights(layer, products), LayerWeights(layer, products, output=self._cross.o_proj)
        self._own.arguments.only = ONLY["attention"]
        sizes = {"hidden": self._own.arguments.hidden, "given": self._own.arguments.hidden}
        self._queries, self._last = (
            LayerArguments(**sizes, is_bf16=self._own.arguments.is_bf16, input_eps=norm.eps) for _ in range(2)
        )
        shared = self._shape.heads // self._shape.kv_heads
        self.maximum = 0 if self._shape.head_dim % TILE else min(self._own.maximum, MAX_QUERIES // shared)

    def __call__(
        self,
        x: Tensor,
        positions: Tensor,
        last: int,
        keys: Tensor,
        values: Tensor,
        length: int,
        seen: Tensor | None,
        read: tuple[Tensor, Tensor],
    ) -> Tensor | None:
        """See `drafters.heads.head.CrossLayerCode`."""
        own, cross = self._rotary.table(last, x), self._cross.rotary.table(last, x)
        plain = (x, keys, values, *own, *cross)
        if (
            torch.is_grad_enabled()
            or not all(each.dtype is self._own.dtype and each.is_contiguous() and each.is_cpu for each in plain)
            or not all(
                each.dtype is x.dtype and each.stride()[1:] == (self._shape.head_dim, 1) and each.is_cpu
                for each in read
            )
        ):
            return None
        self._look_up()
        native, threads, rows, weights = self._native, torch.get_num_threads(), len(x), self._own
        y, z = torch.empty_like(x), torch.empty_like(x)
        # 1. Attention to the text's own keys.
        attention = AttentionArguments(
            None, keys.data_ptr(), values.data_ptr(), None if seen is None else seen.data_ptr(), None,
            1, weights.heads, weights.kv_heads, rows, length, weights.head, 0, keys.stride(0), 0, values.stride(0),
            0, 0 if seen is None else length, weights.head**-0.5, weights.arguments.is_bf16,
        )  # fmt: skip
        places = ctypes.byref(_places(own, positions))
        native.layer(
            ctypes.byref(weights.arguments), x.data_ptr(), x.data_ptr(), places, ctypes.byref(attention), 1,
            y.data_ptr(), threads,
        )  # fmt: skip
        # 2. Queries of the cross-attention, without keys and values, and its attention to the target's.
        width = self._shape.heads * self._shape.head_dim
        queries, attended = x.new_empty(rows * width), x.new_empty(rows * width)
        crossing = AttentionArguments(
            queries.data_ptr(), None, None, None, attended.data_ptr(),
            1, self._shape.heads, 0, rows, rows, self._shape.head_dim,
        )  # fmt: skip
        places = ctypes.byref(_places(cross, positions))
        native.before_attention(ctypes.byref(self._queries), y.data_ptr(), places, ctypes.byref(crossing), 1, threads)
        crossing.k, crossing.v, crossing.kv_heads = read[0].data_ptr(), read[1].data_ptr(), self._shape.kv_heads
        crossing.length, (crossing.k_head_step, crossing.v_head_step) = (
            read[0].shape[1],
            (each.stride(0) for each in read),
        )
        crossing.scale, crossing.is_bf16 = self._shape.head_dim**-0.5, weights.arguments.is_bf16
        native.attention(ctypes.byref(crossing), 1, threads)
        # 3. The rest of the layer, and the norm after it.
        native.after_attention(
            ctypes.byref(self._rest.arguments), y.data_ptr(), attended.data_ptr(), z.data_ptr(), rows, width, threads
        )
        native.norm(ctypes.byref(self._last), z.data_ptr(), y.data_ptr(), rows)
        return y

    def _look_up(self) -> None:
        """Set the current addresses of the weights."""
        self._own.look_up()
        self._rest.look_up()
        before, arguments = self._layer.input_layernorm, self._own.arguments
        arguments.input_norm, arguments.input_eps = before.weight.data_ptr(), before.eps
        query = self._cross.q_proj
        self._queries.q_proj = LinearArguments(*find_linear(query.weight, query.bias, None))
        self._last.input_norm = self._norm.weight.data_ptr()


def _places(table: tuple[Tensor, Tensor], positions: Tensor) -> PositionArguments:
    """Return the positions of rows in tables of cos and sin."""
    return PositionArguments(table[0].data_ptr(), table[1].data_ptr(), 0, positions.data_ptr())
