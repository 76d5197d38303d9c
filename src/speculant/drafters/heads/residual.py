"""The residual block of Medusa's and Hydra's heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from speculant.drafters.heads.layers import Linear


class ResBlock(nn.Module):
    """Adds SiLU(A x + b) to x, or to a projection of x if the sizes differ. A is 0 at first, and so is that term."""

    def __init__(self, size: int, *, given: int = 0, bias: bool = True) -> None:
        """Build a block.

        Args:
            size: D, size of the output.
            given: size of the input; 0 for D. Otherwise a projection, the authors' `res_connection`, maps x to D.
            bias: whether A has a bias.
        """
        super().__init__()
        self.linear = nn.Linear(given or size, size, bias=bias)
        nn.init.zeros_(self.linear.weight)
        if bias:
            nn.init.zeros_(self.linear.bias)
        self.res_connection = nn.Linear(given, size) if given else None

    def forward(self, x: Tensor, linear: Linear) -> Tensor:
        """Return the output [..., D] for x [..., D'], with linear layers applied by `linear`."""
        kept = x if self.res_connection is None else linear(self.res_connection, x)
        return torch.add(kept, nn.functional.silu(linear(self.linear, x)))


def repeat_block(size: int, count: int, *, shared: bool, bias: bool = True) -> list[ResBlock]:
    """Return `count` blocks from D to D: all the same block, as in the authors' programs, or different ones."""
    if not shared:
        return [ResBlock(size, bias=bias) for _ in range(count)]
    return [ResBlock(size, bias=bias)] * count
