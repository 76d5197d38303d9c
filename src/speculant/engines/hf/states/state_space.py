"""State-space duality over a tree: Mamba-2 (Dao and Gu, arXiv 2405.21060).

S_i = e^{G_i} S_0 + sum over j in A(i) of e^{G_i - G_j} (dt_j x_j) B_j^T, and row i reads C_i S_i.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from speculant.engines.hf.states.record import Record


class StateSpace(Record):
    """Inputs and log decays of state-space duality; the state is [1, H, P, N], and H / G heads share B and C."""

    def __init__(self, inputs: Tensor, directions: Tensor, decays: Tensor) -> None:
        """Take dt x [H, T, P], B [G, T, N] and log decays [H, T]."""
        self._inputs, self._directions, self._decays = inputs, directions, decays

    def __len__(self) -> int:
        return int(self._inputs.shape[1])

    def cut(self, rows: int) -> Self:
        return type(self)(self._inputs[:, :rows], self._directions[:, :rows], self._decays[:, :rows])

    @property
    def nbytes(self) -> int:
        return self._inputs.nbytes + self._directions.nbytes + self._decays.nbytes

    @classmethod
    def grown(
        cls,
        record: Self | None,
        state: Tensor,
        ancestors: Tensor,
        *,
        inputs: Tensor,
        directions: Tensor,
        readers: Tensor,
        decays: Tensor,
    ) -> tuple[Self, Tensor]:
        """Return the record with further rows, and their outputs.

        Args:
            record: record of earlier rows; None without any.
            state: [1, H, P, N].
            ancestors: Bool[T, T], of all rows.
            inputs: dt x [H, n, P].
            directions: B [G, n, N].
            readers: C [G, n, N].
            decays: [H, n], at most 0.

        Returns:
            The record, and outputs [H, n, P].
        """
        old = 0 if record is None else len(record)
        if record is not None:
            inputs = torch.cat([record._inputs, inputs], dim=1)
            directions = torch.cat([record._directions, directions], dim=1)
            decays = torch.cat([record._decays, decays], dim=1)
        share = len(inputs) // len(directions)
        sums = decays @ ancestors.to(decays.dtype).T  # G [H, T]
        distance = (sums[:, old:, None] - sums[:, None]).masked_fill(~ancestors[old:], -torch.inf).exp()
        products = (readers @ directions.transpose(1, 2)).repeat_interleave(share, dim=0) * distance  # [H, n, T]
        start = readers.repeat_interleave(share, dim=0) * sums[:, old:, None].exp()
        outputs = start @ state[0].to(start.dtype).transpose(1, 2) + products @ inputs
        return cls(inputs, directions, decays), outputs

    def fold_rows(self, state: Tensor, path: Sequence[int]) -> Tensor:
        rows = list(path)
        sums = self._decays[:, rows].cumsum(dim=1)
        inputs = self._inputs[:, rows] * (sums[:, -1:] - sums).exp()[:, :, None]
        directions = self._directions[:, rows].repeat_interleave(len(inputs) // len(self._directions), dim=0)
        decayed = state[0] * sums[:, -1].exp()[:, None, None]
        return decayed.baddbmm_(inputs.transpose(1, 2), directions).to(state.dtype)[None]
