"""Linear layers for the rows of a draft, by the product of `linear.cpp`."""

from __future__ import annotations

import ctypes

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
        self._module, self._linear, self._most, self._widens = module, native.linear, native.most_rows(), widens

    @property
    def least(self) -> int:
        """The fewest rows for which this beats torch's own product."""
        return 1 if getattr(self._module, "weight", None) is not None and _is_narrow(self._module) else LEAST_ROWS

    def __call__(self, input: Tensor) -> Tensor:  # noqa: A002  (the name that torch gives it)
        """Return [..., outs] of [..., k]."""
        weight, bias = self._module.weight, self._module.bias
        *shape, k = input.shape
        rows, narrow = input.numel() // max(k, 1), _is_narrow(self._module)
        fits = (
            rows >= self.least
            and (rows <= self._most or (narrow and self._widens))
            and tuple(weight.shape[1:]) == (k,)
            and not torch.is_autocast_enabled("cpu")
            and input.dtype == weight.dtype
            and input.device.type == "cpu"
            and readable(weight)
        )
        if not fits or torch.is_grad_enabled():
            return F.linear(input, weight, bias)
        # In float whatever the weights are, so that sums are rounded once.
        x, outs = input.float().contiguous(), weight.shape[0]
        if rows > self._most:
            y = torch.cat([F.linear(x, slab.float()) for slab in torch.split(weight, max(SLAB // k, 1))], dim=-1)
        else:
            y = torch.empty((*shape, outs), dtype=torch.float32)
            self._linear(x.data_ptr(), weight.data_ptr(), y.data_ptr(), rows, outs, k, narrow, torch.get_num_threads())
        if bias is not None:
            y += bias
        return y.to(input.dtype)


def _is_narrow(module: nn.Linear) -> bool:
    return module.weight.dtype is torch.bfloat16


def is_ordinary(module: nn.Module, least: int) -> bool:
    """Say whether a module is an ordinary linear layer of `least` weights. One with its own forward is not."""
    if type(module) is not nn.Linear or not isinstance(module.__dict__.get("forward"), FastLinear | None):
        return False
    return readable(module.weight) and module.weight.numel() >= least


def readable(weight: Tensor) -> bool:
    """Say whether compiled code can read a weight where it lies."""
    plain = type(weight) in (nn.Parameter, Tensor) and weight.layout is torch.strided
    return plain and weight.is_cpu and weight.dtype in DTYPES and weight.is_contiguous()
