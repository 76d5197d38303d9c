"""Products with quantised matrices and lookups in them, by the compiled code (arithmetic: `cpu/quantized.h`)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from speculant.engines.hf.cpu.build import load_native
from speculant.engines.hf.quantized.weight import INPUTS, OUTS, SUPER, QuantizedArguments, QuantizedWeight, pad

Activations = Literal["int8", "float"]


@functools.cache
def native() -> ctypes.CDLL:
    """Return the compiled code, loaded once.

    Raises:
        BuildError: it cannot be compiled or loaded here.
    """
    return load_native()


def multiply(
    weight: QuantizedWeight, x: Tensor, bias: Tensor | None = None, activations: Activations = "int8"
) -> Tensor:
    """Return x weight^T + bias, float32 [..., outs].

    A row's result does not depend, to the last bit, on the other rows, on threads or on the processor.

    Args:
        weight: [outs, k].
        x: float32 [..., k], contiguous.
        bias: float32 [outs], or None.
        activations: "int8" rounds each 32 numbers of x to a scale and bytes; "float" keeps them.

    Raises:
        ValueError: wrong dtype, width or device, or not contiguous.
    """
    return multiply_all([weight], x, [bias], activations)[0]


def multiply_all(
    weights: Sequence[QuantizedWeight], x: Tensor, biases: Sequence[Tensor | None], activations: Activations = "int8"
) -> list[Tensor]:
    """Return x weight^T + bias for several matrices that read the same x, which is rounded once.

    The arguments are those of `multiply`, with one bias or None per weight.
    """
    if activations not in ("int8", "float"):
        raise ValueError(f"activations are 'int8' or 'float', not {activations!r}")
    if len(weights) != len(biases) or not weights:
        raise ValueError(f"{len(weights)} weights with {len(biases)} biases")
    for weight, bias in zip(weights, biases, strict=True):
        check_weight(weight)
        _check(x, "x", torch.float32, (*x.shape[:-1], weight.k))
        if bias is not None:
            _check(bias, "bias", torch.float32, (weight.outs,))
    rows, count = x.shape[:-1].numel(), len(weights)
    outputs = [torch.empty((*x.shape[:-1], weight.outs)) for weight in weights]
    structs = [weight.arguments() for weight in weights]
    native().quantized_linears(
        (ctypes.POINTER(QuantizedArguments) * count)(*(ctypes.pointer(struct) for struct in structs)),
        (ctypes.c_void_p * count)(*(None if bias is None else bias.data_ptr() for bias in biases)),
        (ctypes.c_void_p * count)(*(output.data_ptr() for output in outputs)),
        count,
        x.data_ptr(),
        rows,
        activations == "float",
        torch.get_num_threads(),
    )
    return outputs


def lookup(weight: QuantizedWeight, ids: Tensor) -> Tensor:
    """Return rows of a matrix, float32 [..., k], equal to those of `weight.dequantize()`.

    Args:
        weight: [outs, k].
        ids: int64 [...], contiguous.

    Raises:
        IndexError: an id is outside of [0, outs).
        ValueError: wrong dtype or device, or not contiguous.
    """
    check_weight(weight)
    _check(ids, "ids", torch.int64, ids.shape)
    if ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < weight.outs):
        raise IndexError(f"ids from {int(ids.min())} to {int(ids.max())} for a matrix of {weight.outs} rows")
    output, struct = torch.empty((*ids.shape, weight.k)), weight.arguments()
    native().quantized_rows(ctypes.byref(struct), ids.data_ptr(), ids.numel(), output.data_ptr())
    return output


def check_weight(weight: QuantizedWeight) -> None:
    """Raise ValueError if compiled code cannot read a matrix: parts of other sizes, or not contiguous."""
    blocks, padded = pad(weight.outs, OUTS) // OUTS, pad(weight.k, INPUTS)
    _check(weight.values, "values", torch.uint8, (blocks, padded * weight.bits // 32, OUTS, 4))
    for name, each in (("scales", weight.scales), ("minima", weight.minima)):
        if each is not None:
            _check(each.numbers, name, each.numbers.dtype, (blocks, padded // weight.group, OUTS))
        if each is not None and each.factors is not None:
            _check(each.factors, f"factors of {name}", torch.float16, (blocks, -(-padded // SUPER), OUTS))
    if weight.table is not None:
        _check(weight.table, "table", torch.uint8, (16,))


def _check(tensor: Tensor, name: str, dtype: torch.dtype, shape: Sequence[int]) -> None:
    if tensor.dtype is not dtype or not tensor.is_cpu or not tensor.is_contiguous():
        layout = "contiguous" if tensor.is_contiguous() else "not contiguous"
        raise ValueError(
            f"{name} must be contiguous {dtype} on the CPU, not {tensor.dtype} on {tensor.device}, {layout}"
        )
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name} has the shape {tuple(tensor.shape)}, not {tuple(shape)}")
