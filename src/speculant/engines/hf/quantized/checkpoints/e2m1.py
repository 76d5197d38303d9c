"""4-bit E2M1 numbers with a scale per group: MXFP4 (OCP Microscaling Formats v1.0) and NVFP4."""

from __future__ import annotations

import torch
from torch import Tensor

from speculant.engines.hf.quantized.checkpoints.matrix import group_values
from speculant.engines.hf.quantized.weight import GroupedValues

# Twice the values of the sixteen codes (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives), plus 12.
_OFFSET = 12
_TABLE = (12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0)


def group_e2m1(name: str, codes: Tensor, scales: Tensor) -> GroupedValues:
    """Return a matrix of E2M1 numbers.

    Args:
        name: name of the matrix, for messages.
        codes: UInt8 [outs, k], 0 to 15.
        scales: float32 [outs, groups].
    """
    table = torch.tensor(_TABLE, dtype=torch.uint8)
    group = -(-codes.shape[1] // scales.shape[1])
    return group_values(name, codes, scales / 2, bits=4, group=group, offset=_OFFSET, table=table)


def read_exponents(exponents: Tensor) -> Tensor:
    """Return the powers of two that E8M0 bytes encode, float32 of the same shape."""
    return torch.ldexp(torch.ones(exponents.shape), exponents.int() - 127)
