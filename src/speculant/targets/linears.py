"""Linear layers for the rows of a draft, by the product of `linear.cpp`."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DTYPES = (torch.float32, torch.bfloat16)
LEAST_ROWS = 2  # a single row is as fast by torch's own product


class FastLinear:
    """The forward of one linear layer. Its weight is looked up in every call, so a new one is used at once."""

    __slots__ = ("_linear", "_module", "_most")

    def __init__(self, module: nn.Linear, native: ctypes.CDLL) -> None:
        self._module, self._linear, self._most = module, native.linear, native.most_rows()

    def __call__(self, input: Tensor) -> Tensor:  # noqa: A002  (the name that torch gives it)
        """Return [..., outs] of [..., k]."""
        weight, bias = self._module.weight, self._module.bias
        *shape, k = input.shape
        rows = input.numel() // max(k, 1)
        fits = (
            LEAST_ROWS <= rows <= self._most
            and tuple(weight.shape[1:]) == (k,)
            and not torch.is_autocast_enabled("cpu")
            and input.dtype == weight.dtype
            and input.device.type == "cpu"
            and readable(weight)
        )
        if not fits or torch.is_grad_enabled():
            return F.linear(input, weight, bias)
        # In float whatever the weights are, so that sums are rounded once.
        x, outs, narrow = input.float().contiguous(), weight.shape[0], weight.dtype == torch.bfloat16
        y = torch.empty((*shape, outs), dtype=torch.float32)
        self._linear(x.data_ptr(), weight.data_ptr(), y.data_ptr(), rows, outs, k, narrow, torch.get_num_threads())
        if bias is not None:
            y += bias
        return y.to(input.dtype)


def is_ordinary(module: nn.Module, least: int) -> bool:
    """Say whether a module is an ordinary linear layer of `least` weights. One with its own forward is not."""
    if type(module) is not nn.Linear or not isinstance(module.__dict__.get("forward"), FastLinear | None):
        return False
    return readable(module.weight) and module.weight.numel() >= least


def readable(weight: Tensor) -> bool:
    """Say whether compiled code can read a weight where it lies."""
    plain = type(weight) in (nn.Parameter, Tensor) and weight.layout is torch.strided
    return plain and weight.is_cpu and weight.dtype in DTYPES and weight.is_contiguous()
