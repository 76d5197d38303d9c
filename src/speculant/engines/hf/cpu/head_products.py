"""Large linear layers of heads, one product at a time: compiled, and for the fewest rows from bfloat16 copies."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from speculant.engines.hf.cpu.kernel_table import KernelTable
from speculant.engines.hf.cpu.linear import AcceleratedLinear, can_accelerate
from speculant.engines.hf.cpu.narrow_weights import ROWS, NarrowWeights
from speculant.engines.hf.cpu.packing import memory_allows
from speculant.engines.hf.cpu.products import Products

MIN_LINEAR = 1 << 18  # weights of a layer; smaller ones are left to PyTorch


class HeadProducts:
    """The layers seen so far, each with its code, and their copies where memory allows them."""

    def __init__(self, load: Callable[[], Products | None]) -> None:
        """Set what loads the kernels when they are first needed; it returns None if there are none."""
        self._load = load
        self._linears: dict[nn.Module, AcceleratedLinear] = {}
        self._narrow, self._narrowed = NarrowWeights(), set[nn.Module]()

    def __call__(self, module: nn.Module, x: Tensor) -> Tensor:
        """Return module(x); a layer with hooks or a forward of its own, and any other module, is called as it is."""
        hooked = module._forward_hooks or module._forward_pre_hooks
        if hooked or not can_accelerate(module) or module.weight.numel() < MIN_LINEAR:
            answer: Tensor = module(x)
            return answer
        code = self._linears.get(module)
        if code is None:
            products = self._load()
            if products is None:
                return module.forward(x)
            code = self._linears[module] = AcceleratedLinear(module, KernelTable(products=products))
            if memory_allows([module.weight])[0]:
                self._narrowed.add(module)
        few = x.numel() <= ROWS * x.shape[-1] and x.dtype is torch.float32
        if few and module in self._narrowed and code.supports(x):
            return code.products.multiply("compiled", x, self._narrow(module.weight), module.bias)
        return code(module, x)
