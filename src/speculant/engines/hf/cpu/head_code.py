"""Compiled code for heads: their decoder layers in one call, and their large products for a few rows.

A head's step has some thirty operations on a single row, which take longer than reading its weights. `layer.cpp` does
all of a layer in one call, attention included; what the attention reads may be wider than the layer, as EAGLE-3's is.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor, nn

from speculant.engines.hf.cpu.build import BuildError, load_native
from speculant.engines.hf.cpu.decoder_layer import LayerArguments, LinearArguments, PositionArguments
from speculant.engines.hf.cpu.gqa import MOST_QUERIES, TILE, Attention
from speculant.engines.hf.cpu.kernel_table import KernelTable
from speculant.engines.hf.cpu.layer_matching import LINEARS
from speculant.engines.hf.cpu.linear import AcceleratedLinear, is_torch_linear, readable
from speculant.engines.hf.cpu.products import DTYPES, Products

LEAST_LAYER = 1 << 15  # weights of a layer; smaller ones are left to PyTorch
LEAST_LINEAR = 1 << 18  # of a product by itself


class HeadCode:
    """Compiled code for the heads of one target, loaded when it is first wanted."""

    def __init__(self) -> None:
        self._products: Products | None = None
        self._available = True
        self._linears: dict[nn.Linear, AcceleratedLinear] = {}

    def layer(self, layer: nn.Module) -> HeadLayer | None:
        """Return the code of a head's decoder layer; None if it is too small, or the code cannot compute it."""
        if sum(weight.numel() for weight in layer.parameters()) < LEAST_LAYER or not computable(layer):
            return None
        products = self._load()
        return None if products is None else HeadLayer(layer, products)

    def linear(self, module: nn.Module, x: Tensor) -> Tensor:
        """Return module(x)."""
        found = self._linears.get(module) if isinstance(module, nn.Linear) else None
        if found is None:
            if not is_torch_linear(module) or module.weight.numel() < LEAST_LINEAR or not readable(module.weight):
                answer: Tensor = module(x)
                return answer
            products = self._load()
            if products is None:
                return module.forward(x)
            found = self._linears[module] = AcceleratedLinear(module, KernelTable(products=products))
        return found(module, x)

    def _load(self) -> Products | None:
        if self._products is None and self._available:
            try:
                self._products = Products(load_native())
            except BuildError:  # the engine reports it
                self._available = False
        return self._products


def computable(layer: Any) -> bool:
    """Return whether a layer has the parts that the code computes, of ordinary weights of one dtype."""
    linears = [getattr(layer.self_attn if name in LINEARS[:4] else layer.mlp, name, None) for name in LINEARS]
    if not all(is_torch_linear(linear) for linear in linears if linear is not None) or None in linears:
        return False
    weights = list(layer.parameters())
    dtype = weights[0].dtype
    return dtype in DTYPES and all(weight.dtype is dtype and readable(weight) for weight in weights)


class HeadLayer:
    """The code of one decoder layer. Weights are looked up in every call, so new ones are used at once."""

    def __init__(self, layer: Any, products: Products) -> None:
        """Take a layer that is `computable`."""
        attention, mlp, self._native = layer.self_attn, layer.mlp, products.native
        linears = {name: getattr(attention if name in LINEARS[:4] else mlp, name) for name in LINEARS}
        norms = {"post": layer.post_attention_layernorm}
        norms |= {name: attention._modules[f"{name}_norm"] for name in "qk" if f"{name}_norm" in attention._modules}
        self._linears = [(name, linear._parameters) for name, linear in linears.items()]
        self._norms = [(f"{name}_norm", norm._parameters) for name, norm in norms.items()]
        self._head = head = int(attention.shape.head_dim)
        self._heads, self._kv_heads = (linears[name].out_features // head for name in ("q_proj", "k_proj"))
        self._dtype = linears["q_proj"].weight.dtype
        self._given, self._hidden = linears["q_proj"].in_features, linears["o_proj"].out_features
        self._layer = LayerArguments(
            hidden=self._hidden,
            inner=linears["up_proj"].out_features,
            given=self._given,
            is_bf16=self._dtype is torch.bfloat16,
            **{f"{name}_eps": norm.eps for name, norm in norms.items()},
        )
        self._current: list[int] = []
        rows = products.most_rows(self._dtype)
        self.most = min(rows, MOST_QUERIES * self._kv_heads // self._heads) if head % TILE == 0 else 0

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
        rows = len(x)
        cos, sin = angles
        if (
            rows > self.most
            or torch.is_grad_enabled()
            or not all(
                each.dtype is self._dtype and each.is_contiguous() and each.is_cpu
                for each in (x, given, cos, sin, keys)
            )
        ):
            return None
        self._look_up()
        y, step = torch.empty_like(x), keys.stride(0)
        call = Attention(
            None, keys.data_ptr(), values.data_ptr(), None if seen is None else seen.data_ptr(), None,
            1, self._heads, self._kv_heads, rows, length, self._head, 0, step, 0, step,
            0, 0 if seen is None else length, self._head**-0.5, self._layer.is_bf16,
        )  # fmt: skip
        positions = PositionArguments(cos.data_ptr(), sin.data_ptr(), 1)
        pointers = ctypes.byref(positions), ctypes.byref(call), y.data_ptr()
        self._native.layer(
            ctypes.byref(self._layer), x.data_ptr(), given.data_ptr(), *pointers, torch.get_num_threads()
        )
        return y

    def _look_up(self) -> None:
        """Set the addresses of the weights, where they have changed."""
        current = [own["weight"].data_ptr() for _, own in self._norms]
        biases = [own["bias"] for _, own in self._linears]
        current += [own["weight"].data_ptr() for _, own in self._linears]
        current += [0 if bias is None else bias.data_ptr() for bias in biases]
        if current == self._current:
            return
        found = iter(current)
        for name, _ in self._norms:
            setattr(self._layer, name, next(found))
        weights = [next(found) for _ in self._linears]
        for (name, _), weight, bias in zip(self._linears, weights, found, strict=True):
            setattr(self._layer, name, LinearArguments(weight, bias or None))
        self._current = current
