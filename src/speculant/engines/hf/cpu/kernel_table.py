"""Selects the fastest measured kernel for a weight shape and a number of rows.

A kernel replaces PyTorch's product only if it was clearly faster, so that noise never selects a slower one; packed
weights, which cost memory, only if they save a tenth. Times are measured at a few numbers of rows; in between, the
nearest on a logarithmic scale is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from speculant.engines.hf.cpu.products import Kernel, Products

ROW_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MAX_ROWS = ROW_COUNTS[-1]  # above, as in prompts, only kernels made for many rows are considered
MANY_ROWS: tuple[Kernel, ...] = ("torch", "widened", "packed")
# A kernel is preferred to the previous ones if it takes at most this share of their time.
SHARES: Mapping[Kernel, float] = {"compiled": 0.97, "bf16_dot": 0.95, "widened": 0.95, "packed": 0.9}
DRAFTS = tuple(rows for rows in ROW_COUNTS if 2 <= rows <= 64)
LARGE = 1 << 20  # minimum weights for a one-row product to gain more than its call costs
FUSED_SHARE = 1.05  # allowed product time of a one-call layer, relative to the best kernel for each

Shape = tuple[int, int]  # outs, k
Times = Mapping[Kernel, Sequence[float]]  # seconds at each of ROW_COUNTS; infinite where not tried


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """Measured times of kernels, and the kernel choice based on them.

    Attributes:
        products: the kernels of this processor.
        dtype: dtype of the measured weights; other dtypes, and shapes without times, follow a fixed rule.
        times: seconds by shape, kernel and number of rows.
        packed: shapes with packed copies.
        exact: whether a row's result must be independent of the number of rows to the last bit: one kernel for all.
    """

    products: Products
    dtype: torch.dtype | None = None
    times: Mapping[Shape, Times] = field(default_factory=dict)
    packed: frozenset[Shape] = frozenset()
    exact: bool = False

    def kernel(self, dtype: torch.dtype, shape: Shape, rows: int, *, packed: bool = True) -> Kernel:
        """Return the kernel for a product over `rows` rows; without `packed`, one for plain weights."""
        if self.exact:
            return "compiled"
        times = self.times.get(shape) if dtype is self.dtype else None
        if times is None:
            return self.products.guess_kernel(dtype, rows)
        return choose(times, rows, packed=packed and shape in self.packed)

    def one_call(self, dtype: torch.dtype, shapes: Sequence[Shape], rows: int) -> Kernel | None:
        """Return the compiled kernel for a layer with these products in one call; None if other kernels are faster."""
        if self.exact:
            return "compiled"
        measured = [shape for shape in shapes if shape in self.times] if dtype is self.dtype else []
        if not measured:
            return "compiled" if self.products.guess_kernel(dtype, rows) == "compiled" else None
        place = _nearest(rows)
        best = sum(self.times[shape][self.kernel(dtype, shape, rows)][place] for shape in measured)
        native = {
            kernel: sum(self.times[shape][kernel][place] for shape in measured)
            for kernel in self.products.available(dtype)
            if kernel in ("compiled", "bf16_dot")
        }
        fastest = min(native, key=lambda kernel: native[kernel])
        return fastest if rows <= MAX_ROWS and native[fastest] <= FUSED_SHARE * best else None

    def has_times(self, dtype: torch.dtype, shapes: Sequence[Shape]) -> bool:
        """Return whether there are times for any of these shapes."""
        return dtype is self.dtype and any(shape in self.times for shape in shapes)

    def gains(self, dtype: torch.dtype, shape: Shape, rows: int) -> bool:
        """Return whether an individual linear layer is faster than PyTorch's."""
        if self.kernel(dtype, shape, rows) == "torch":
            return False
        if self.exact:
            return True
        # Without measurements: for one row of floats the gain is less than the cost of calling other code, except for
        # large weights such as the output head.
        if rows > 1 or dtype is not torch.float32 or shape[0] * shape[1] >= LARGE:
            return True
        return dtype is self.dtype and shape in self.times


def shapes_to_pack(times: Mapping[Shape, Times], counts: Mapping[Shape, int]) -> frozenset[Shape]:
    """Return the shapes whose packing saves a tenth of a pass's products for some draft size.

    Args:
        times: times of all shapes.
        counts: number of layers of each shape.
    """

    def total(rows: int, *, packed: bool) -> float:
        place = _nearest(rows)
        return sum(counts[shape] * each[choose(each, rows, packed=packed)][place] for shape, each in times.items())

    sizes = [rows for rows in DRAFTS if total(rows, packed=True) <= SHARES["packed"] * total(rows, packed=False)]
    return frozenset(
        shape for shape, each in times.items() if any(choose(each, rows, packed=True) == "packed" for rows in sizes)
    )


def choose(times: Times, rows: int, *, packed: bool) -> Kernel:
    """Return the kernel for `rows` rows, given the times of one shape."""
    place = _nearest(rows)
    chosen: Kernel = "torch"
    for kernel, share in SHARES.items():
        allowed = (packed or kernel != "packed") and (rows <= MAX_ROWS or kernel in MANY_ROWS)
        if allowed and kernel in times and times[kernel][place] < share * times[chosen][place]:
            chosen = kernel
    return chosen


def _nearest(rows: int) -> int:
    return min(round(math.log2(max(rows, 1))), len(ROW_COUNTS) - 1)
