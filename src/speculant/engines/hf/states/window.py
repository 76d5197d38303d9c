"""Causal convolutions over the last K tokens of each row's path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.activations import ACT2FN

from speculant.engines.hf.states.record import Record


class Window(Record):
    """Inputs of a causal convolution over the last K tokens of a path."""

    def __init__(self, inputs: Tensor) -> None:
        """Take the inputs [C, T] of rows."""
        self._inputs = inputs

    def __len__(self) -> int:
        return int(self._inputs.shape[1])

    def cut(self, rows: int) -> Window:
        return Window(self._inputs[:, :rows])

    @property
    def nbytes(self) -> int:
        return self._inputs.nbytes

    @classmethod
    def grown(cls, record: Any, inputs: Tensor, state: Tensor, places: Tensor) -> tuple[Window, Tensor]:
        """Return the record with further rows, and the window of each.

        Args:
            record: the `Window` of earlier rows; None without any.
            inputs: [C, n], of the new rows.
            state: [1, C, K'], the last inputs of the committed text.
            places: Int64[n, K], where the inputs of each row's window are, the row's own last: 0 to K' - 1 in the
                state, then rows.

        Returns:
            The record, and windows [n, C, K].
        """
        rows = inputs if record is None else torch.cat([record._inputs, inputs], dim=1)
        seen = torch.cat([state[0].to(rows.dtype), rows], dim=1)
        return cls(rows), seen[:, places].transpose(0, 1)

    def folded(self, state: Tensor, path: Sequence[int]) -> Tensor:
        kept = torch.cat([state[0], self._inputs[:, list(path)].to(state.dtype)], dim=1)
        return kept[None, :, -state.shape[-1] :].clone()


def convolve(windows: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    """Return [1, C, n]: the convolution of windows [n, C, K] by weight [C, K].

    In half precision by the operator that the classes use, whose sums are of float32; its call takes longer than the
    sums where a pass has few rows.
    """
    given = windows.to(weight.dtype)
    if weight.dtype == torch.float32:
        out = (given * weight).sum(dim=-1)
        out = out if bias is None else out + bias
    else:
        out = F.conv1d(given, weight.unsqueeze(1), bias, groups=windows.shape[1])[:, :, 0]
    if activation is not None:
        out = ACT2FN[activation](out)
    return out.T[None].to(windows.dtype)
