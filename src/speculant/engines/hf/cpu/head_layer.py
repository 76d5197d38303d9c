"""Compiled code for a decoder layer of a head: the whole layer in one call of `layer.cpp`, attention included.

The input of the attention may be wider than the layer, as in EAGLE-3.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from speculant.engines.hf.cpu.gqa import MAX_QUERIES, TILE, AttentionArguments
from speculant.engines.hf.cpu.layer_matching import LINEARS
from speculant.engines.hf.cpu.layer_structs import LayerArguments, LinearArguments, PositionArguments
from speculant.engines.hf.cpu.linear import is_torch_linear, readable
from speculant.engines.hf.cpu.products import DTYPES, Products
from speculant.engines.hf.quantized.modules import QuantizedLinear


def computable(layer: Any) -> bool:
    """Return whether a layer has the parts that the code supports, with ordinary weights of one dtype."""
    mlp = getattr(layer, "mlp", None)  # early-exit adapters have none
    names = LINEARS[:4] if mlp is None else LINEARS
    linears = [getattr(layer.self_attn if name in LINEARS[:4] else mlp, name, None) for name in names]
    if not all(is_torch_linear(linear) for linear in linears if linear is not None) or None in linears:
        return False
    shape = getattr(layer.self_attn, "shape", None)
    if shape is not None and shape.rotary_dim < shape.head_dim:
        return False
    weights = list(layer.parameters())
    dtype = weights[0].dtype
    return dtype in DTYPES and all(weight.dtype is dtype and readable(weight) for weight in weights)


class LayerWeights:
    """The weights of a decoder layer. They are looked up for every call, so new ones take effect at once.

    Attributes:
        arguments: the layer's arguments for the compiled code.
        modules: the modules that own the weights.
        heads, kv_heads, head: head counts and head size of its attention.
        dtype: dtype of all weights.
        maximum: maximum rows per call.
    """

    def __init__(
        self,
        layer: Any,
        products: Products,
        narrow: Callable[[Tensor], Tensor] | None = None,
        *,
        output: nn.Linear | None = None,
    ) -> None:
        """Take a layer that is `computable`.

        Args:
            layer: the layer that owns the weights.
            products: the available products.
            narrow: returns the copy of a matrix to read in its place; None to read the matrices themselves.
            output: output projection of another attention before the MLP; None for the layer's own.
        """
        attention, mlp, self._narrow = layer.self_attn, getattr(layer, "mlp", None), narrow
        names = LINEARS[:4] if mlp is None else LINEARS
        linears = {name: getattr(attention if name in LINEARS[:4] else mlp, name) for name in names}
        if output is not None:
            linears["o_proj"] = output
        norms = {} if mlp is None else {"post": layer.post_attention_layernorm}
        norms |= {name: attention._modules[f"{name}_norm"] for name in "qk" if f"{name}_norm" in attention._modules}
        self.modules = (*linears.values(), *norms.values())
        self._linears = [(name, linear._parameters) for name, linear in linears.items()]
        self._norms = [(f"{name}_norm", norm._parameters) for name, norm in norms.items()]
        self.head = int(attention.shape.head_dim)
        self.heads, self.kv_heads = (linears[name].out_features // self.head for name in ("q_proj", "k_proj"))
        self.dtype: torch.dtype = linears["q_proj"].weight.dtype
        self.arguments = LayerArguments(
            hidden=linears["o_proj"].out_features,
            inner=0 if mlp is None else linears["up_proj"].out_features,
            given=linears["q_proj"].in_features,
            is_bf16=self.dtype is torch.bfloat16,
            **{f"{name}_eps": norm.eps for name, norm in norms.items()},
        )
        self._current: list[Any] = []
        rows = products.max_rows(self.dtype)
        self.maximum = min(rows, MAX_QUERIES * self.kv_heads // self.heads) if self.head % TILE == 0 else 0

    def look_up(self) -> bool:
        """Set the addresses of the weights; return whether any has changed."""
        norms = [own["weight"].data_ptr() for _, own in self._norms]
        linears = [find_linear(own["weight"], own["bias"], self._narrow) for _, own in self._linears]
        current = [norms, linears]
        if current == self._current:
            return False
        for (name, _), address in zip(self._norms, norms, strict=True):
            setattr(self.arguments, name, address)
        for (name, _), found in zip(self._linears, linears, strict=True):
            setattr(self.arguments, name, LinearArguments(*found))
        self._current = current
        return True


def find_linear(
    weight: Tensor, bias: Tensor | None, narrow: Callable[[Tensor], Tensor] | None
) -> tuple[int, int | None, bool]:
    """Return the fields of `LinearArguments`: the addresses of a matrix (or its copy) and its bias."""
    read = weight if narrow is None else narrow(weight)
    return read.data_ptr(), None if bias is None else bias.data_ptr(), read is not weight


def find_quantized(linear: QuantizedLinear) -> tuple[None, int | None, bool, bool, int]:
    """Return the fields of `LinearArguments` for a quantised layer."""
    bias, keep = linear.bias, linear.activations == "float"
    return None, None if bias is None else bias.data_ptr(), False, keep, ctypes.addressof(linear.arguments())


class HeadLayer:
    """See `drafters.heads.head.LayerCode`."""

    def __init__(self, layer: Any, products: Products) -> None:
        """Take a layer that is `computable`."""
        self._weights, self._native = LayerWeights(layer, products), products.native
        self.maximum = self._weights.maximum

    def __call__(
        self,
        x: Tensor,
        given: Tensor,
        angles: tuple[Tensor, Tensor],
        keys: Tensor,
        values: Tensor,
        length: int,
        seen: Tensor | None,
    ) -> Tensor | None:
        """See `drafters.heads.head.LayerCode`."""
        rows, weights = len(x), self._weights
        cos, sin = angles
        if (
            rows > self.maximum
            or torch.is_grad_enabled()
            or not all(
                each.dtype is weights.dtype and each.is_contiguous() and each.is_cpu
                for each in (x, given, cos, sin, keys)
            )
        ):
            return None
        weights.look_up()
        y, step = torch.empty_like(x), keys.stride(0)
        call = AttentionArguments(
            None, keys.data_ptr(), values.data_ptr(), None if seen is None else seen.data_ptr(), None,
            1, weights.heads, weights.kv_heads, rows, length, weights.head, 0, step, 0, step,
            0, 0 if seen is None else length, weights.head**-0.5, weights.arguments.is_bf16,
        )  # fmt: skip
        positions = PositionArguments(cos.data_ptr(), sin.data_ptr(), 1)
        pointers = ctypes.byref(positions), ctypes.byref(call), 1, y.data_ptr()
        self._native.layer(
            ctypes.byref(weights.arguments), x.data_ptr(), given.data_ptr(), *pointers, torch.get_num_threads()
        )
        return y
