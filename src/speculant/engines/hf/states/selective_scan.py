"""The selective scan over a tree: Mamba (Gu and Dao, arXiv 2312.00752).

S_i = e^{dt_i A} S_p(i) + (dt_i x_i) B_i^T, where p(i) is the parent of row i. Decays differ by channel and state, so
that no sum over ancestors is cheaper than the states themselves: they are computed level by level, and dropped after
the pass. The rows' inputs are recorded.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from speculant.engines.hf.states.record import Record


class SelectiveScan(Record):
    """Inputs of a selective scan; the state is [1, d, N]."""

    def __init__(self, steps: Tensor, inputs: Tensor, directions: Tensor, rates: Tensor) -> None:
        """Take dt [T, d], dt x [T, d], B [T, N] of rows, and A [d, N]."""
        self._steps, self._inputs, self._directions, self._rates = steps, inputs, directions, rates

    def __len__(self) -> int:
        return len(self._steps)

    def cut(self, rows: int) -> SelectiveScan:
        return SelectiveScan(self._steps[:rows], self._inputs[:rows], self._directions[:rows], self._rates)

    @property
    def nbytes(self) -> int:
        return self._steps.nbytes + self._inputs.nbytes + self._directions.nbytes

    @classmethod
    def grown(
        cls,
        record: SelectiveScan | None,
        state: Tensor,
        levels: Sequence[tuple[Tensor, Tensor]],
        *,
        steps: Tensor,
        inputs: Tensor,
        directions: Tensor,
        readers: Tensor,
        rates: Tensor,
    ) -> tuple[SelectiveScan, Tensor]:
        """Return the record with further rows, and their outputs.

        Args:
            record: record of earlier rows; None without any.
            state: [1, d, N].
            levels: for all rows, the rows of each depth and their parents' indices plus 1, Int64[m] each.
            steps: dt [n, d].
            inputs: dt x [n, d].
            directions: B [n, N].
            readers: C [n, N].
            rates: A [d, N].

        Returns:
            The record, and outputs [n, d].
        """
        old = 0 if record is None else len(record)
        if record is not None:
            steps, inputs = torch.cat([record._steps, steps]), torch.cat([record._inputs, inputs])
            directions = torch.cat([record._directions, directions])
        grown = cls(steps, inputs, directions, rates)
        states = steps.new_empty((len(steps) + 1, *rates.shape))  # the committed state first
        states[0] = state[0]
        for rows, parents in levels:
            states[rows + 1] = grown._step_states(states[parents], rows, state.dtype)
        return grown, (states[old + 1 :] @ readers[:, :, None])[:, :, 0]

    def fold_rows(self, state: Tensor, path: Sequence[int]) -> Tensor:
        held = state.float()
        for row in path:
            held = self._step_states(held, torch.tensor([row], device=state.device), state.dtype)
        return held.to(state.dtype)

    def _step_states(self, states: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the states [m, d, N] of rows from those of their parents, rounded like a cache of this dtype."""
        decays = (self._steps[rows, :, None] * self._rates).exp()
        return (states * decays + self._inputs[rows, :, None] * self._directions[rows, None]).to(dtype).to(states.dtype)
