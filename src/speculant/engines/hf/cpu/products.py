"""The kernels that can compute a linear layer on this processor.

| kernel | what it is |
|---|---|
| torch | PyTorch's own product |
| compiled | `linear.cpp`, for the few rows of a draft; bfloat16 weights are converted as they are read |
| bf16_dot | the same with the processor's AVX512-BF16 instructions (`linear_bf16.cpp`) |
| widened | PyTorch's product in float, some bfloat16 weights at a time; for processors without bfloat16 instructions |
| packed | oneDNN's product on a copy of the weights in its own layout (`packing.py`) |

Which of them is used for a shape and a number of rows is in `kernel_table.py`.
"""

from __future__ import annotations

import ctypes
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from speculant.engines.hf.cpu.build import processor

Kernel = Literal["torch", "compiled", "bf16_dot", "widened", "packed"]
DTYPES = (torch.float32, torch.bfloat16)
SLAB = 1 << 24  # weights widened at a time


class Products:
    """Matrix products of rows and weights by any of the kernels."""

    __slots__ = ("_maximum", "multiplies_bf16", "native")

    def __init__(self, native: ctypes.CDLL) -> None:
        """Use the library that `load_native` returned."""
        self.native = native
        self.multiplies_bf16 = multiplies_bf16()
        self._maximum: dict[torch.dtype, int] = {dtype: native.max_rows(dtype is torch.bfloat16) for dtype in DTYPES}

    def available(self, dtype: torch.dtype) -> tuple[Kernel, ...]:
        """Return the kernels that can multiply weights of a dtype, PyTorch's own first."""
        kernels: list[Kernel] = ["torch", "compiled"]
        if dtype is torch.bfloat16 and self.native.has_linear_bf16():
            kernels.append("bf16_dot")
        if dtype is torch.bfloat16 and not self.multiplies_bf16:
            kernels.append("widened")
        if can_pack(dtype):
            kernels.append("packed")
        return tuple(kernels)

    def max_rows(self, dtype: torch.dtype) -> int:
        """Return the maximum rows for which the compiled kernel is made."""
        return self._maximum[dtype]

    def guess_kernel(self, dtype: torch.dtype, rows: int) -> Kernel:
        """Return the kernel that is usually fastest for `rows` rows, in the absence of measurements."""
        if rows <= self.max_rows(dtype):
            return "compiled"
        return "widened" if dtype is torch.bfloat16 and not self.multiplies_bf16 else "torch"

    def multiply(
        self, kernel: Kernel, x: Tensor, weight: Tensor, bias: Tensor | None, packed: Tensor | None = None
    ) -> Tensor:
        """Return x weight^T + bias, [..., outs] in the dtype of x.

        Args:
            kernel: one of `available` for their common dtype.
            x: [..., k].
            weight: [outs, k], contiguous.
            bias: [outs], or None.
            packed: the packed weight, for the kernel "packed".
        """
        if kernel == "torch":
            return F.linear(x, weight, bias)
        if kernel == "packed":
            return linear_packed(x, packed, bias)
        outs, k = weight.shape
        y = torch.empty((*x.shape[:-1], outs), dtype=torch.float32)  # sums are rounded once
        rows, threads = x.numel() // max(k, 1), torch.get_num_threads()
        if kernel == "bf16_dot":
            x = x.contiguous()
            self.native.linear_bf16(x.data_ptr(), weight.data_ptr(), y.data_ptr(), rows, outs, k, threads)
        elif kernel == "compiled":
            wide, is_bf16 = x.float().contiguous(), weight.dtype is torch.bfloat16
            self.native.linear(wide.data_ptr(), weight.data_ptr(), y.data_ptr(), rows, outs, k, is_bf16, threads)
        else:
            wide = x.float()
            for start in range(0, outs, step := max(SLAB // max(k, 1), 1)):
                y[..., start : start + step] = F.linear(wide, weight[start : start + step].float())
        if bias is not None:
            y += bias
        return y.to(x.dtype)


def multiplies_bf16() -> bool:
    """Return whether the processor has bfloat16 instructions: AVX-512, AMX or ARM."""
    return "bf16" in processor()


def can_pack(dtype: torch.dtype) -> bool:
    """Return whether oneDNN can multiply weights of a dtype here, with the operations of this torch release."""
    packing = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not available or packing is None:
        return False
    return dtype is torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack(weight: Tensor, rows: int) -> Tensor:
    """Return a copy of [outs, k] in oneDNN's layout for about `rows` rows."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows)
    return packed


def linear_packed(x: Tensor, packed: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return x weight^T + bias by oneDNN."""
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return y
