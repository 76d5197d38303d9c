"""Modules that multiply by quantised weights, in the place of `torch.nn.Linear` and `torch.nn.Embedding`.

The matrices stay packed (`weight.py`): the layers of a model read them as they are, and nothing is expanded. A row's
result depends on that row alone, so text decoded with drafts is the text decoded without them.

The packed tensors are buffers, so what watches a model for changes sees them. They are not part of its `state_dict`,
which refuses to be made: without them it would silently hold half a model. They keep their dtypes when the model is
cast, and stay on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.quantized.products import Activations as Activations
from speculant.engines.hf.quantized.products import lookup, multiply
from speculant.engines.hf.quantized.weight import QuantizedArguments, QuantizedWeight

DTYPES = (torch.float32, torch.bfloat16)
_PREFIX = "packed_"  # of the buffers' names
_SCALED = "ScaledWordEmbedding"  # the end of the classes' names whose rows are multiplied by a constant


class WeightOutline:
    """The shape, dtype and device that code asks of a module's weight; the numbers themselves are packed."""

    __slots__ = ("device", "dtype", "ndim", "requires_grad", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.shape, self.dtype, self.ndim = torch.Size(shape), dtype, len(shape)
        self.device, self.requires_grad = torch.device("cpu"), False

    def numel(self) -> int:
        """Return how many weights there are."""
        return self.shape.numel()

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or one of its sizes."""
        return self.shape if dim is None else self.shape[dim]

    def __len__(self) -> int:
        return self.shape[0]

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a quantised weight is packed and has no {name!r}; use its module's dequantize().")


class QuantizedModule(nn.Module):
    """A module around one quantised matrix.

    Attributes:
        quantized: the matrix [outs, k].
        dtype: of the module's outputs.
    """

    def __init__(self, weight: QuantizedWeight, *, dtype: torch.dtype) -> None:
        super().__init__()
        _check_dtype(dtype)
        self.quantized, self.dtype = weight, dtype
        self._arguments: QuantizedArguments | None = None
        for name, part in weight.tensors().items():
            self.register_buffer(_PREFIX + name, part, persistent=False)

    @property
    def weight(self) -> WeightOutline:
        """What can be said of the weight [outs, k] without its numbers."""
        return WeightOutline((self.quantized.outs, self.quantized.k), self.dtype)

    def dequantize(self) -> Tensor:
        """Return the weight [outs, k] in the module's dtype, expanded anew in every call."""
        return self.quantized.dequantize().to(self.dtype)

    def arguments(self) -> QuantizedArguments:
        """Return the struct that compiled code takes, which lives as long as this module."""
        if self._arguments is None:
            self._arguments = self.quantized.arguments()
        return self._arguments

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arguments": None}  # addresses, which copies and pickles must not take over

    def packed(self) -> dict[str, Tensor]:
        """Return the packed tensors by the names of their buffers."""
        return {name: part for name, part in self._buffers.items() if name.startswith(_PREFIX) and part is not None}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantizedModule:
        """Cast the module as a model is cast or moved: the packed tensors stay what they are.

        Raises:
            UnsupportedError: the target is no CPU, or no dtype that the products have.
        """
        like = fn(torch.empty(0, dtype=self.dtype))
        if like.device.type != "cpu":
            raise UnsupportedError(
                f"quantised weights are multiplied on the CPU and cannot be moved to {like.device.type}; load the "
                "model's own weights there instead."
            )
        _check_dtype(like.dtype)
        held = self.packed()
        for name in held:
            del self._buffers[name]
        try:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        finally:
            self._buffers.update(held)
        self.dtype = like.dtype
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> NoReturn:
        raise UnsupportedError(
            f"the weight of {prefix.rstrip('.') or type(self).__name__} is packed and has no place in a state_dict; "
            "keep the file that the model was loaded from, or save the model before it is quantised."
        )


class QuantizedLinear(QuantizedModule):
    """x w^T + bias with a quantised w."""

    def __init__(
        self, weight: QuantizedWeight, bias: Tensor | None, *, dtype: torch.dtype, activations: Activations = "int8"
    ) -> None:
        """Take the matrix.

        Args:
            weight: [outs, k].
            bias: [outs], or None.
            dtype: of inputs and outputs, float32 or bfloat16.
            activations: whether the inputs of a product are rounded to 8 bits, by row and group of 32, or kept.

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
        """Return [..., outs] of [..., k]. Where a gradient is wanted, it goes through the dequantised matrix."""
        if input.requires_grad and torch.is_grad_enabled():
            return F.linear(input, self.dequantize().to(input.dtype), self.bias)
        found = multiply(self.quantized, input.detach().float().contiguous(), None, self.activations)
        if self.bias is not None:
            found += self.bias  # as compiled layers add it: to the sums, before these are rounded to the dtype
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
        """Take the matrix.

        Args:
            weight: [V, D].
            dtype: of the rows, float32 or bfloat16.
            scale: what they are multiplied by, as Gemma does; None for nothing.
            padding_idx: the token of padding, for code that asks.

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
        """Return rows of the matrix, [..., D] of Int[...], not scaled."""
        return lookup(self.quantized, ids.long().contiguous()).to(self.dtype)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, bits={self.quantized.bits}, group={self.quantized.group}"


def replace_weights(
    model: nn.Module, weights: Mapping[str, QuantizedWeight], *, activations: Activations = "int8"
) -> None:
    """Put modules with quantised weights in the place of linear layers and embeddings.

    A module whose weight is one with a named one (a tied output head) gets the same matrix, unless it is named itself.
    The model is changed: it must be the caller's own. Its other weights may still be on the device "meta".

    Args:
        model: to change.
        weights: by the names of the parameters that they replace, such as "lm_head.weight".
        activations: whether the products round their inputs to 8 bits.

    Raises:
        UnsupportedError: a name is of no linear layer or embedding, or its shape or dtype is another.
    """
    wanted = dict(weights)
    names = dict(model.named_parameters(remove_duplicate=False))
    given = {id(names[name]): weight for name, weight in weights.items() if name in names}
    for name, parameter in names.items():
        if id(parameter) in given:
            wanted.setdefault(name, given[id(parameter)])
    for name, weight in wanted.items():
        path, _, last = name.rpartition(".")
        try:
            module = model.get_submodule(path)
        except AttributeError:
            module = None
        if last != "weight" or module is None:
            raise UnsupportedError(f"the model has no linear layer or embedding with the weight {name!r}.")
        parent, _, place = path.rpartition(".")
        model.get_submodule(parent)._modules[place] = _quantize(name, module, weight, activations)


def quantized_modules(model: nn.Module) -> Iterator[tuple[str, QuantizedModule]]:
    """Return the modules of a model that hold quantised matrices, by name."""
    for name, module in model.named_modules():
        if isinstance(module, QuantizedModule):
            yield name, module


def is_quantized_linear(module: Any) -> bool:
    """Return whether a module is a quantised linear layer whose forward nobody has replaced."""
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


def _check_dtype(dtype: torch.dtype) -> None:
    if dtype not in DTYPES:
        raise UnsupportedError(
            f"quantised weights are multiplied in float32 or bfloat16, not {dtype}; load the model in one of these."
        )
