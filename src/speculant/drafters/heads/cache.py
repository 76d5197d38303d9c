"""Keys and values of a head's own decoder layers: rows of committed tokens, and rows of the draft below them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_ROOM = 256  # rows by which the buffers grow


class HeadCache:
    """The rows of one text in L layers. Not for several threads at once.

    Attributes:
        first: the position of the first row in the text.
        committed: how many rows are committed.
    """

    def __init__(self, layers: int, *, first: int = 0) -> None:
        self.first, self.committed = first, 0
        self._parents: list[int] = []  # of the draft's rows
        self._depths: list[int] = []
        self._ancestors = torch.zeros(0, 0, dtype=torch.bool)  # of the draft's rows, themselves included
        self._keys: list[Tensor | None] = [None] * layers
        self._values: list[Tensor | None] = [None] * layers

    @property
    def length(self) -> int:
        """How many tokens of the text have rows, those missing at the beginning included."""
        return self.first + self.committed

    @property
    def drafted(self) -> int:
        """How many rows the draft has."""
        return len(self._parents)

    def commit(self, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Make room for so many rows of committed tokens; `append` fills it, layer by layer.

        Returns:
            Their positions Int64[n], and which rows each may attend to, Bool[n, rows], itself included.
        """
        assert not self._parents
        before, self.committed = self.committed, self.committed + count
        rows = torch.arange(self.committed, device=device)
        new = rows[before:]
        return new + self.first, rows <= new[:, None]

    def branch(self, above: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
        """Make room for rows of the draft below others of it (-1: the root); `append` fills it, layer by layer.

        Returns:
            Their positions Int64[n], and which rows each may attend to, Bool[n, rows], itself included.
        """
        before, count = self.drafted, self.drafted + len(above)
        ancestors = torch.zeros(count, count, dtype=torch.bool)
        ancestors[:before, :before] = self._ancestors
        for row, parent in enumerate(above, before):
            if parent >= 0:
                ancestors[row] = ancestors[parent]
            ancestors[row, row] = True
            self._depths.append(0 if parent < 0 else self._depths[parent] + 1)
            self._parents.append(parent)
        self._ancestors = ancestors
        seen = torch.ones(len(above), self.committed + count, dtype=torch.bool)
        seen[:, self.committed :] = ancestors[before:]
        positions = torch.tensor(self._depths[before:]) + self.length
        return positions.to(device), seen.to(device)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write the keys and values [H, n, d] of the rows there is room for; return those of all rows [H, rows, d]."""
        end = self.committed + self.drafted
        start = end - keys.shape[1]
        for held, new in ((self._keys, keys), (self._values, values)):
            old = held[layer]
            if old is None or old.shape[1] < end:
                grown = new.new_empty(new.shape[0], end + _ROOM, new.shape[2])
                if old is not None:
                    grown[:, :start] = old[:, :start]
                held[layer] = old = grown
            old[:, start:end] = new
        return self.rows(layer)

    def rows(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values [H, rows, d] of all rows of a layer."""
        found_keys, found_values = self._keys[layer], self._values[layer]
        assert found_keys is not None
        assert found_values is not None
        end = self.committed + self.drafted
        return found_keys[:, :end], found_values[:, :end]

    def drop(self) -> None:
        """Drop the rows of the draft."""
        self._parents, self._depths = [], []
        self._ancestors = torch.zeros(0, 0, dtype=torch.bool)

    def crop(self, length: int) -> None:
        """Drop the rows of the draft, and those of all tokens from this position on."""
        self.drop()
        self.committed = max(0, min(self.committed, length - self.first))
