"""The branching of one sequence's draft rows, in the forms that recurrences read."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from speculant.core.errors import UsageError
from speculant.core.tree import ROOT, Int64
from speculant.engines.hf.draft_rows import DraftRows


class Branching:
    """The branching of one sequence's rows, in the forms that recurrences read."""

    def __init__(self, rows: DraftRows, new: int, trunk: int, device: torch.device) -> None:
        """Take rows; the last `new` are the pass's, and the first `trunk` are already in the state.

        Raises:
            UsageError: a row does not descend from those.
        """
        self.count, self._device = new, device
        self._parents: Int64 = rows.parents[trunk:] - trunk
        if trunk and (self._parents < ROOT).any():
            raise UsageError(
                "on a model with states, a row cannot be a sibling of one that was run before: run both in one pass."
            )
        self._parents = np.maximum(self._parents, ROOT)
        self._depths = rows.depths[trunk:] - trunk
        self.ancestors = torch.from_numpy(rows.ancestors[trunk:, trunk:]).to(device)
        self._windows: dict[tuple[int, int], Tensor] = {}

    def windows(self, kernel: int, held: int) -> Tensor:
        """Return where each new row finds the last `kernel` inputs of its path, Int64[K, n].

        `ConvolutionWindow.grown` uses them.

        Args:
            kernel: K.
            held: number of inputs in the state.
        """
        if (kernel, held) not in self._windows:
            total = len(self._parents)
            places = np.empty((kernel, self.count), np.int64)
            at = np.arange(total - self.count, total)
            for column in range(kernel - 1, -1, -1):
                places[column] = held + at
                at = np.where(at >= 0, self._parents[np.maximum(at, 0)], at - 1)  # -1 is the last token of the state
            self._windows[kernel, held] = torch.from_numpy(places).to(self._device)
        return self._windows[kernel, held]

    @cached_property
    def levels(self) -> list[tuple[Tensor, Tensor]]:
        """The rows of each depth and their parents' indices plus 1, Int64[m] each."""
        levels = [np.flatnonzero(self._depths == depth) for depth in range(1, int(self._depths.max(initial=0)) + 1)]
        return [self._pair(rows) for rows in levels]

    @cached_property
    def new_levels(self) -> list[tuple[Tensor, Tensor]]:
        """The same for the pass's own rows."""
        own = np.arange(len(self._parents)) >= len(self._parents) - self.count
        depths = np.unique(self._depths[own]).tolist()
        return [self._pair(np.flatnonzero(own & (self._depths == depth))) for depth in depths]

    def _pair(self, rows: Int64) -> tuple[Tensor, Tensor]:
        """Return rows of one depth, and their parents' indices plus 1."""
        return torch.from_numpy(rows).to(self._device), torch.from_numpy(self._parents[rows] + 1).to(self._device)
