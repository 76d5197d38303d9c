"""Causal convolutions over the last K tokens of each row's path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.activations import ACT2FN

from speculant.engines.hf.states.record import Record


class ConvolutionWindow(Record):
    """Inputs of a causal convolution over the last K tokens of a path."""

    def __init__(self, inputs: Tensor) -> None:
        """Take the inputs [T, C] of rows."""
        self._inputs = inputs

    def __len__(self) -> int:
        return len(self._inputs)

    def cut(self, rows: int) -> ConvolutionWindow:
        return ConvolutionWindow(self._inputs[:rows])

    @property
    def nbytes(self) -> int:
        return self._inputs.nbytes

    @classmethod
    def grown(
        cls, record: Any, inputs: Tensor, state: Tensor, places: Tensor
    ) -> tuple[ConvolutionWindow, list[Tensor]]:
        """Return the record with further rows, and the window of each row.

        Args:
            record: the `ConvolutionWindow` of earlier rows; None without any.
            inputs: [n, C], of the new rows.
            state: [1, C, K'], the last inputs of the committed text.
            places: Int64[K, n], the indices of the inputs in each row's window, the row's own last: 0 to K' - 1 in the
                state, then rows.

        Returns:
            The record, and windows, K of [n, C]: inputs are contiguous, so that a row is copied at once.
        """
        rows = inputs if record is None else torch.cat([record._inputs, inputs])
        seen = torch.cat([state[0].T.to(rows.dtype), rows])
        return cls(rows), [seen.index_select(0, each) for each in places]

    def fold_rows(self, state: Tensor, path: Sequence[int]) -> Tensor:
        folded, kernel = torch.empty_like(state), state.shape[-1]
        last = path[-kernel:]
        stay = kernel - len(last)
        folded[..., :stay] = state[..., len(last) :]
        for place, row in enumerate(last, start=stay):
            folded[0, :, place] = self._inputs[row]
        return folded


def convolve(windows: Sequence[Tensor], weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    """Return [1, C, n]: the convolution of windows, K of [n, C], by weight [C, K].

    In half precision this uses the classes' own operator, which sums in float32; for passes of few rows, calling it
    takes longer than the sums.
    """
    if weight.dtype == torch.float32:
        columns = weight.T.contiguous()
        out = windows[0].float() * columns[0]
        for inputs, column in zip(windows[1:], columns[1:], strict=True):
            out = out.addcmul_(inputs.float(), column)
        out = out if bias is None else out.add_(bias)
    else:
        given = torch.stack([*windows], dim=-1).to(weight.dtype)
        out = F.conv1d(given, weight.unsqueeze(1), bias, groups=given.shape[1])[:, :, 0]
    if activation is not None:
        out = ACT2FN[activation](out)
    return out.T[None].to(windows[0].dtype)
