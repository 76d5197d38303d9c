"""Linear layers for the rows of a draft, by the product of `linear.cpp`."""

from __future__ import annotations

import ctypes
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DTYPES = (torch.float32, torch.bfloat16)
LEAST_ROWS = 2  # a single row of floats is as fast by torch's own product
SLAB = 1 << 24  # weights widened at a time


class FastLinear:
    """The forward of one linear layer. Its weight is looked up in every call, so a new one is used at once."""

    __slots__ = ("_linear", "_module", "_most", "_widens")

    def __init__(self, module: nn.Linear, native: ctypes.CDLL, *, widens: bool) -> None:
        """Take a layer, and whether the processor must widen bfloat16 before it multiplies."""
        self._module, self._linear, self._widens = module, native.linear, widens
        self._most = most_rows(native)

    def suits(self, rows: int) -> bool:
        """Say whether the layer is still torch's own, and its own product slower for at least so many rows."""
        weight = self._module._parameters.get("weight")
        narrow = weight is not None and weight.dtype is torch.bfloat16
        return is_torchs(self._module) and (rows >= LEAST_ROWS or narrow)

    def __call__(self, input: Tensor) -> Tensor:  # noqa: A002  (the name that torch gives it)
        """Return [..., outs] of [..., k]."""
        weight, bias = self._module.weight, self._module.bias
        *shape, k = input.shape
        rows, most = input.numel() // max(k, 1), self._most.get(input.dtype, 0)
        narrow = input.dtype is torch.bfloat16
        fits = (
            weight is not None
            and rows >= (1 if narrow else LEAST_ROWS)
            and (rows <= most or (narrow and self._widens))
            and tuple(weight.shape[1:]) == (k,)
            and not torch.is_autocast_enabled("cpu")
            and input.dtype == weight.dtype
            and (bias is None or bias.dtype == weight.dtype)
            and input.device.type == "cpu"
            and readable(weight)
        )
        if not fits or torch.is_grad_enabled():
            return F.linear(input, weight, bias)
        # In float whatever the weights are, so that sums are rounded once.
        x, outs = input.float().contiguous(), weight.shape[0]
        y = torch.empty((*shape, outs), dtype=torch.float32)
        if rows > most:
            for start in range(0, outs, step := max(SLAB // k, 1)):
                y[..., start : start + step] = F.linear(x, weight[start : start + step].float())
        else:
            self._linear(x.data_ptr(), weight.data_ptr(), y.data_ptr(), rows, outs, k, narrow, torch.get_num_threads())
        if bias is not None:
            y += bias
        return y.to(input.dtype)


def most_rows(native: ctypes.CDLL) -> dict[torch.dtype, int]:
    """Return the most rows that the compiled product is made for, by the type of the weights."""
    return {dtype: native.most_rows(dtype is torch.bfloat16) for dtype in DTYPES}


def is_torchs(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Say whether a module is a linear layer by torch's own class, into which nobody has put another forward."""
    return type(module) is nn.Linear and nn.Linear.forward.__module__ == nn.Linear.__module__


def is_ordinary(module: nn.Module, least: int) -> bool:
    """Say whether a module is an ordinary linear layer of `least` weights. One with its own forward is not."""
    if not is_torchs(module) or not isinstance(module.__dict__.get("forward"), FastLinear | None):
        return False
    return readable(module.weight) and module.weight.numel() >= least


def readable(weight: Tensor) -> bool:
    """Say whether compiled code can read a weight where it lies."""
    plain = type(weight) in (nn.Parameter, Tensor) and weight.layout is torch.strided
    return plain and weight.is_cpu and weight.dtype in DTYPES and weight.is_contiguous()
