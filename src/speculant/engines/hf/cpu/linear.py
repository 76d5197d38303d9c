"""Linear layers computed by the kernel that measured fastest for the number of rows."""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from speculant.engines.hf.cpu.kernel_table import KernelTable
from speculant.engines.hf.cpu.packing import PackedWeight
from speculant.engines.hf.cpu.products import DTYPES, Products


class AcceleratedLinear:
    """The forward of one linear layer. Its weight is looked up in every call, so a new one takes effect at once."""

    __slots__ = ("_table", "module", "packed")

    def __init__(self, module: nn.Linear, table: KernelTable) -> None:
        self.module, self._table = module, table
        self.packed: PackedWeight | None = None

    @property
    def products(self) -> Products:
        """The kernels."""
        return self._table.products

    def gains(self, rows: int) -> bool:
        """Return whether the layer is still of torch's class, and another kernel is faster for `rows` rows."""
        weight = self.module._parameters.get("weight")
        if not is_torch_linear(self.module) or weight is None or not readable(weight) or weight.ndim != 2:
            return False
        return self._table.gains(weight.dtype, (weight.shape[0], weight.shape[1]), rows)

    def supports(self, input: Tensor) -> bool:  # noqa: A002
        """Return whether other kernels than PyTorch's can multiply the layer's weight with an input, if it has one."""
        weight, bias = self.module.weight, self.module.bias
        return (
            weight is not None
            and input.numel() > 0
            and tuple(weight.shape[1:]) == (input.shape[-1],)
            and not torch.is_autocast_enabled("cpu")
            and input.dtype == weight.dtype
            and (bias is None or bias.dtype == weight.dtype)
            and input.device.type == "cpu"
            and readable(weight)
            and not torch.is_grad_enabled()
        )

    def __call__(self, module: nn.Module, input: Tensor) -> Tensor:  # noqa: A002  (the name that torch gives it)
        """Return [..., outs] of [..., k]."""
        if not is_torch_linear(self.module):  # its class has been changed or patched
            answer: Tensor = type(self.module).forward(module, input)  # type: ignore[arg-type]
            return answer
        weight, bias = self.module.weight, self.module.bias
        if not self.supports(input):
            return F.linear(input, weight, bias)
        k = input.shape[-1]
        table, rows, shape = self._table, input.numel() // k, (weight.shape[0], k)
        if not table.gains(weight.dtype, shape, rows):
            return F.linear(input, weight, bias)
        kernel, packed = table.kernel(weight.dtype, shape, rows), None
        if kernel == "packed":
            packed = None if self.packed is None else self.packed.of(weight)
            kernel = kernel if packed is not None else table.kernel(weight.dtype, shape, rows, packed=False)
        return table.products.multiply(kernel, input, weight, bias, packed)


def is_torch_linear(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Return whether a module is of torch's own linear class with its original forward."""
    return type(module) is nn.Linear and nn.Linear.forward.__module__ == nn.Linear.__module__


def can_accelerate(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Return whether a module is an ordinary linear layer, without a forward of its own."""
    if not is_torch_linear(module) or "forward" in module.__dict__:
        return False
    return readable(module.weight)


def readable(weight: Tensor) -> bool:
    """Return whether compiled code can read a weight in place."""
    plain = type(weight) in (nn.Parameter, Tensor) and weight.layout is torch.strided
    return plain and weight.is_cpu and weight.dtype in DTYPES and weight.is_contiguous()
