"""Modules that multiply by quantised weights, replacing `torch.nn.Linear` and `torch.nn.Embedding`.

The matrices stay packed (`weight.py`): a model's layers read them directly, and nothing is expanded. A row's result
depends on that row alone, so decoding with drafts gives the same text as decoding without them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.quantized.experts import PROJECTIONS, QuantizedExperts, is_experts
from speculant.engines.hf.quantized.packed_module import PackedModule
from speculant.engines.hf.quantized.products import Activations as Activations
from speculant.engines.hf.quantized.products import lookup, native
from speculant.engines.hf.quantized.weight import QuantizedArguments, QuantizedWeight

_SCALED = "ScaledWordEmbedding"  # suffix of class names whose rows are multiplied by a constant


class WeightOutline:
    """The shape, dtype and device of a module's weight, without its values, which are packed."""

    __slots__ = ("device", "dtype", "ndim", "requires_grad", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.shape, self.dtype, self.ndim = torch.Size(shape), dtype, len(shape)
        self.device, self.requires_grad = torch.device("cpu"), False

    def numel(self) -> int:
        """Return the number of weights."""
        return self.shape.numel()

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or one dimension of it."""
        return self.shape if dim is None else self.shape[dim]

    def __len__(self) -> int:
        return self.shape[0]

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a quantised weight is packed and has no {name!r}; use its module's dequantize().")


class QuantizedModule(PackedModule):
    """A module with one quantised matrix."""

    def __init__(self, weight: QuantizedWeight, *, dtype: torch.dtype) -> None:
        super().__init__({"": weight}, dtype=dtype)

    @property
    def quantized(self) -> QuantizedWeight:
        """The matrix [outs, k]."""
        return self.matrices[""]

    @property
    def weight(self) -> WeightOutline:
        """An outline of the weight [outs, k], without its values."""
        return WeightOutline((self.quantized.outs, self.quantized.k), self.dtype)

    def dequantize(self) -> Tensor:
        """Return the weight [outs, k] in the module's dtype, expanded in every call."""
        return self.quantized.dequantize().to(self.dtype)

    def arguments(self) -> QuantizedArguments:
        """Return the struct for the compiled code, valid as long as this module."""
        if self._structs is None:
            self._structs = self.quantized.arguments()
        found: QuantizedArguments = self._structs
        return found


class QuantizedLinear(QuantizedModule):
    """x w^T + bias with a quantised w."""

    def __init__(
        self, weight: QuantizedWeight, bias: Tensor | None, *, dtype: torch.dtype, activations: Activations = "int8"
    ) -> None:
        """Take the weights.

        Args:
            weight: [outs, k].
            bias: [outs], or None.
            dtype: dtype of inputs and outputs, float32 or bfloat16.
            activations: whether the inputs of a product are rounded to 8 bits, by row and group of 32.

        Raises:
            UnsupportedError: there are no products in this dtype.
        """
        super().__init__(weight, dtype=dtype)
        self.in_features, self.out_features, self.activations = weight.k, weight.outs, activations
        frozen = bias if bias is None or isinstance(bias, nn.Parameter) else nn.Parameter(bias, requires_grad=False)
        if frozen is not None:
            frozen.requires_grad = False
        self.bias = frozen

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (the name that torch gives it)
        """Return [..., outs] of [..., k]. Gradients, if requested, go through the dequantised matrix."""
        if input.requires_grad and torch.is_grad_enabled():
            return F.linear(input, self.dequantize().to(input.dtype), self.bias)
        if input.shape[-1] != self.in_features:
            raise ValueError(f"inputs of {input.shape[-1]} numbers for a layer of {self.in_features}")
        x = input.detach().float().contiguous()
        found, keep = torch.empty((*x.shape[:-1], self.out_features)), self.activations == "float"
        pointers = ctypes.byref(self.arguments()), x.data_ptr(), None, found.data_ptr()
        native().quantized_linear(*pointers, x.shape[:-1].numel(), keep, torch.get_num_threads())
        if self.bias is not None:
            found += self.bias  # added to the sums before they are rounded to the dtype, as in compiled layers
        return found.to(input.dtype)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bits={self.quantized.bits}, group={self.quantized.group}"


class QuantizedEmbedding(QuantizedModule):
    """Rows of a quantised matrix."""

    def __init__(
        self,
        weight: QuantizedWeight,
        *,
        dtype: torch.dtype,
        scale: float | None = None,
        padding_idx: int | None = None,
    ) -> None:
        """Take the weights.

        Args:
            weight: [V, D].
            dtype: dtype of the rows, float32 or bfloat16.
            scale: factor of the rows, as in Gemma; None for none.
            padding_idx: the padding token, for callers that need it.

        Raises:
            UnsupportedError: there are no products in this dtype.
        """
        super().__init__(weight, dtype=dtype)
        self.num_embeddings, self.embedding_dim = weight.outs, weight.k
        self.scale, self.padding_idx = scale, padding_idx

    def forward(self, ids: Tensor) -> Tensor:
        """Return [..., D] of Int[...]."""
        found = self.rows(ids)
        return found if self.scale is None else found * torch.tensor(self.scale, dtype=self.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        """Return unscaled rows of the matrix, [..., D] of Int[...]."""
        return lookup(self.quantized, ids.long().contiguous()).to(self.dtype)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, bits={self.quantized.bits}, group={self.quantized.group}"


def replace_weights(
    model: nn.Module, weights: Mapping[str, QuantizedWeight], *, activations: Activations = "int8"
) -> None:
    """Replace linear layers and embeddings by modules with quantised weights.

    A module whose weight is tied to a named one (an output head) gets the same matrix, unless it is named itself. The
    model is changed, so it must belong to the caller. Its other weights may still be on the device "meta".

    Args:
        model: the model to change.
        weights: by the names of the parameters that they replace, such as "lm_head.weight"; those of a layer's experts
            by the names that `experts.expert_weights` gives them, such as "model.layers.0.mlp.experts.gate_proj".
        activations: whether the products round their inputs to 8 bits.

    Raises:
        UnsupportedError: a name is not a linear layer or embedding, or its shape or dtype differs.
    """
    wanted = dict(weights)
    names = dict(model.named_parameters(remove_duplicate=False))
    tied = {id(names[name]): weight for name, weight in weights.items() if name in names}
    for name, parameter in names.items():
        if id(parameter) in tied:
            wanted.setdefault(name, tied[id(parameter)])
    experts: dict[str, dict[str, QuantizedWeight]] = {}
    for name, weight in wanted.items():
        path, _, last = name.rpartition(".")
        try:
            module: Any = model.get_submodule(path)
        except AttributeError:
            module = None
        if last in PROJECTIONS and module is not None and is_experts(module):
            experts.setdefault(path, {})[last] = weight
        elif last == "weight" and module is not None:
            _put(model, path, _quantize(name, module, weight, activations))
        else:
            raise UnsupportedError(f"the model has no linear layer, embedding or experts with the weight {name!r}.")
    for path, given in experts.items():
        _put(model, path, QuantizedExperts(model.get_submodule(path), given, activations=activations))


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, place = path.rpartition(".")
    model.get_submodule(parent)._modules[place] = module


def quantized_modules(model: nn.Module) -> Iterator[tuple[str, PackedModule]]:
    """Return the modules of a model that hold quantised matrices, by name."""
    for name, module in model.named_modules():
        if isinstance(module, PackedModule):
            yield name, module


def is_quantized_linear(module: Any) -> TypeGuard[QuantizedLinear]:
    """Return whether a module is a quantised linear layer with its original forward."""
    return type(module) is QuantizedLinear and QuantizedLinear.forward.__module__ == __name__


def _quantize(name: str, module: nn.Module, weight: QuantizedWeight, activations: Activations) -> QuantizedModule:
    held = module._parameters.get("weight")
    shape = None if held is None else tuple(held.shape)
    if held is None or shape != (weight.outs, weight.k):
        raise UnsupportedError(f"{name} has {weight.outs} x {weight.k} weights in the file and {shape} in the model.")
    kind = type(module)
    if kind is nn.Linear:
        bias: Tensor | None = module._parameters.get("bias")
        return QuantizedLinear(weight, bias, dtype=held.dtype, activations=activations)
    if kind is nn.Embedding or kind.__name__.endswith(_SCALED):
        scale = getattr(module, "scalar_embed_scale", getattr(module, "embed_scale", None))
        padding: Any = module.padding_idx
        return QuantizedEmbedding(weight, dtype=held.dtype, scale=scale, padding_idx=padding)
    raise UnsupportedError(f"{name} belongs to a {kind.__name__}, for which there are no quantised products.")
