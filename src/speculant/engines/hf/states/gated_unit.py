"""The real-gated linear recurrent unit over a tree: RecurrentGemma, Griffin (De et al., arXiv 2402.19427, section 2.4).

h_i = a_i h_p(i) + x_i, per channel, where p(i) is the parent of row i. A state is as small as a row's contribution to
it, so the states of the rows themselves are recorded, computed level by level in the order of the class's own one-token
function.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from speculant.engines.hf.states.record import Record


class GatedUnit(Record):
    """States of a real-gated linear recurrent unit; the state is [1, W], in float32."""

    def __init__(self, states: Tensor) -> None:
        """Take the states [T, W] after rows."""
        self._states = states

    def __len__(self) -> int:
        return len(self._states)

    def cut(self, rows: int) -> GatedUnit:
        return GatedUnit(self._states[:rows])

    @property
    def nbytes(self) -> int:
        return self._states.nbytes

    @classmethod
    def grown(
        cls,
        record: GatedUnit | None,
        state: Tensor,
        levels: Sequence[tuple[Tensor, Tensor]],
        *,
        gates: Tensor,
        inputs: Tensor,
    ) -> tuple[GatedUnit, Tensor]:
        """Return the record with further rows, and their states.

        Args:
            record: record of earlier rows; None without any.
            state: [1, W].
            levels: for the new rows, the rows of each depth and their parents' indices plus 1, Int64[m] each.
            gates: a [n, W].
            inputs: x [n, W].

        Returns:
            The record, and states [n, W].
        """
        old = 0 if record is None else len(record)
        states = state.new_empty((1 + old + len(inputs), state.shape[-1]))  # the committed state first
        states[0] = state[0]
        if record is not None:
            states[1 : old + 1] = record._states
        for rows, parents in levels:
            states[rows + 1] = gates[rows - old].to(state.dtype) * states[parents] + inputs[rows - old].to(state.dtype)
        return cls(states[1:]), states[old + 1 :]

    def fold_rows(self, state: Tensor, path: Sequence[int]) -> Tensor:
        return self._states[path[-1]][None].clone() if path else torch.clone(state)
