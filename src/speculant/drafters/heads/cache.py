"""Keys and values of a head's own decoder layers: rows of committed tokens, and rows of the draft below them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_ROOM = 256  # rows by which the buffers grow
_DRAFTED = 64  # rows of a draft that need no larger mask


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
        self._ancestors = np.zeros((_DRAFTED, _DRAFTED), np.bool_)  # of the draft's rows, themselves included
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

    def commit(self, count: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """Make room for so many rows of committed tokens; `append` or `reserve` fills it, layer by layer.

        Returns:
            Their positions Int64[n], and which rows each may attend to, Bool[n, rows], itself included; None if all.
        """
        assert not self._parents
        before, self.committed = self.committed, self.committed + count
        new = torch.arange(before, self.committed, device=device)
        seen = None if count == 1 else torch.arange(self.committed, device=device) <= new[:, None]
        return new + self.first, seen

    def branch(self, above: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor | None]:
        """Make room for rows of the draft below others of it (-1: the root); `append` or `reserve` fills it.

        Returns:
            Their positions Int64[n], and which rows each may attend to, Bool[n, rows], itself included; None if all.
        """
        before, count, positions = self.drafted, self.drafted + len(above), list[int]()
        if count > len(self._ancestors):
            wider = np.zeros((2 * count, 2 * count), np.bool_)
            wider[:before, :before] = self._ancestors[:before, :before]
            self._ancestors = wider
        for row, parent in enumerate(above, before):
            depth = 0 if parent < 0 else self._depths[parent] + 1
            self._ancestors[row, :count] = False
            if parent >= 0:
                self._ancestors[row, : parent + 1] = self._ancestors[parent, : parent + 1]
            self._ancestors[row, row] = True
            self._depths.append(depth)
            self._parents.append(parent)
            positions.append(self.length + depth)
        placed = torch.tensor(positions, device=device)
        if len(above) == 1 and self._depths[before] == before:
            return placed, None  # of a chain
        seen = np.ones((len(above), self.committed + count), np.bool_)
        seen[:, self.committed :] = self._ancestors[before:count, :count]
        return placed, torch.from_numpy(seen).to(device)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write the keys and values [H, n, d] of the rows there is room for; return those of all rows [H, rows, d]."""
        count = keys.shape[1]
        held_keys, held_values, end = self.reserve(layer, count, (keys.shape[0], keys.shape[2]), keys)
        held_keys[:, end - count : end], held_values[:, end - count : end] = keys, values
        return held_keys[:, :end], held_values[:, :end]

    def reserve(self, layer: int, count: int, shape: tuple[int, int], like: Tensor) -> tuple[Tensor, Tensor, int]:
        """Return the buffers [H, room, d] of a layer's keys and values, and the number of rows, the new ones included.

        Args:
            layer: whose buffers.
            count: how many of the rows there is room for are to be written; they are the last ones.
            shape: H and d.
            like: of the dtype and device of keys and values.
        """
        end = self.committed + self.drafted
        return *self._grown(layer, end, end - count, shape, like), end

    def spare(self, layer: int, count: int, shape: tuple[int, int], like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the buffers [H, room, d] of a layer's keys and values, with room for rows that are not kept."""
        return self._grown(layer, self.committed + count, self.committed, shape, like)

    def _grown(self, layer: int, end: int, written: int, shape: tuple[int, int], like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the buffers of a layer with room for `end` rows, of which so many are written."""
        for held in (self._keys, self._values):
            old = held[layer]
            if old is None or old.shape[1] < end:
                held[layer] = grown = like.new_empty(shape[0], end + _ROOM, shape[1])
                if old is not None:
                    grown[:, :written] = old[:, :written]
        return self._held(layer)

    def rows(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values [H, rows, d] of all rows of a layer."""
        end = self.committed + self.drafted
        keys, values = self._held(layer)
        return keys[:, :end], values[:, :end]

    def drop(self) -> None:
        """Drop the rows of the draft."""
        self._parents, self._depths = [], []

    def crop(self, length: int) -> None:
        """Drop the rows of the draft, and those of all tokens from this position on."""
        self.drop()
        self.committed = max(0, min(self.committed, length - self.first))

    def _held(self, layer: int) -> tuple[Tensor, Tensor]:
        keys, values = self._keys[layer], self._values[layer]
        assert keys is not None
        assert values is not None
        return keys, values
