"""Compiled code for heads: steps or decoder layers in one call, and single products."""

from __future__ import annotations

from operator import is_
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from speculant.drafters.heads.layers import RMSNorm, Rotary
from speculant.engines.hf.cpu.build import BuildError, load_native
from speculant.engines.hf.cpu.head_cross_layer import HeadCrossLayer
from speculant.engines.hf.cpu.head_layer import HeadLayer, computable
from speculant.engines.hf.cpu.head_products import HeadProducts
from speculant.engines.hf.cpu.head_step import HeadStep
from speculant.engines.hf.cpu.linear import is_torch_linear, readable
from speculant.engines.hf.cpu.narrow_weights import NarrowWeights
from speculant.engines.hf.cpu.packing import memory_allows
from speculant.engines.hf.cpu.products import Products
from speculant.engines.hf.quantized.modules import is_quantized_linear

MIN_LAYER = 1 << 15  # weights of a layer; smaller ones are left to PyTorch


class HeadCode:
    """Compiled code for the heads of one target, loaded on first use."""

    def __init__(self) -> None:
        self._products: Products | None = None
        self._available = True
        self.linear = HeadProducts(self._load)
        # By the last layer of a head, for all its texts; None if memory does not allow copies.
        self._copies: WeakKeyDictionary[nn.Module, NarrowWeights | None] = WeakKeyDictionary()
        # By the same, code of heads on top of the target's own layers, with the views of these that it was made for.
        self._exits: dict[nn.Module, tuple[tuple[nn.Module, ...], HeadStep]] = {}

    def layer(self, layer: nn.Module) -> HeadLayer | None:
        """Return the code for a head's decoder layer; None if it is too small or unsupported."""
        if not self._worth_a_call(layer):
            return None
        products = self._load()
        return None if products is None else HeadLayer(layer, products)

    def cross_layer(self, layer: Any, norm: RMSNorm, rotary: Rotary) -> HeadCrossLayer | None:
        """Return the code for a decoder layer with cross-attention and the norm after it; None as for `layer`."""
        linears = (layer.cross_attn.q_proj, layer.cross_attn.o_proj)
        if not self._worth_a_call(layer) or not all(is_torch_linear(linear) for linear in linears):
            return None
        if norm.weight.dtype is not linears[0].weight.dtype or not readable(norm.weight):
            return None
        products = self._load()
        return None if products is None else HeadCrossLayer(layer, norm, rotary, products)

    def step(self, parts: Any, embeddings: nn.Module, output: nn.Module) -> HeadStep | None:
        """Return the code for a head's steps; None if a layer is too small or a part is unsupported.

        Args:
            parts: `drafters.heads.step.StepParts` of the head.
            embeddings: token embeddings, the head's or the target's.
            output: output projection, likewise.
        """
        if not (is_torch_linear(output) or is_quantized_linear(output)):
            return None
        if not all(self._worth_a_call(layer) for layer in parts.layers):
            return None
        optional = (parts.fuse, parts.norm, *(parts.fuse_norms or ()))
        others = [output, *(part for part in optional if part is not None)]
        weights = [weight for part in (*parts.layers, *others) for weight in part.parameters()]
        if output.weight.dtype is not weights[0].dtype:
            return None
        if not all(weight.dtype is weights[0].dtype and readable(weight) for weight in weights):
            return None
        products = self._load()
        if products is None:
            return None
        last = parts.layers[-1]
        known = self._exits.get(last) if parts.exit else None
        if known is not None and len(known[0]) == len(parts.layers) and all(map(is_, known[0], parts.layers)):
            return known[1]
        if last not in self._copies:
            self._copies[last] = NarrowWeights() if memory_allows(weights)[0] else None
        found = HeadStep(parts, embeddings, output, products, narrow=self._copies[last])
        if parts.exit:
            self._exits[last] = tuple(parts.layers), found
        return found

    @staticmethod
    def _worth_a_call(layer: nn.Module) -> bool:
        return sum(weight.numel() for weight in layer.parameters()) >= MIN_LAYER and computable(layer)

    def _load(self) -> Products | None:
        if self._products is None and self._available:
            try:
                self._products = Products(load_native())
            except BuildError:  # the engine reports it
                self._available = False
        return self._products
