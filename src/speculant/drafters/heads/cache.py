"""Keys and values of a head's own decoder layers: rows of committed tokens, and rows of the draft below them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_ROOM = 256  # spare rows allocated when the buffers grow
_DRAFTED = 64  # draft rows that the initial mask has room for


class HeadCache:
    """The rows of one text in L layers. Not thread-safe.

    Attributes:
        first: position of the first row in the text.
        committed: number of committed rows.
    """

    def __init__(self, layers: int, *, first: int = 0) -> None:
        self.first, self.committed = first, 0
        self._parents: list[int] = []  # parents of the draft's rows
        self._depths: list[int] = []
        self._ancestors = np.zeros((_DRAFTED, _DRAFTED), np.bool_)  # of the draft's rows, including each row itself
        self._keys: list[Tensor | None] = [None] * layers
        self._values: list[Tensor | None] = [None] * layers

    @property
    def length(self) -> int:
        """Number of tokens of the text up to the last committed row, including those without rows at the beginning."""
        return self.first + self.committed

    @property
    def drafted(self) -> int:
        """Number of rows in the draft."""
        return len(self._parents)

    def commit(self, count: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """Reserve rows for committed tokens; `append` or `reserve` fills them, layer by layer.

        Returns:
            Their positions Int64[n], and the rows each may attend to, Bool[n, rows], including itself; None for all.
        """
        assert not self._parents
        before, self.committed = self.committed, self.committed + count
        new = torch.arange(before, self.committed, device=device)
        seen = None if count == 1 else torch.arange(self.committed, device=device) <= new[:, None]
        return new + self.first, seen

    def branch(self, above: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor | None]:
        """Reserve draft rows below the given parent rows (-1: the root); `append` or `reserve` fills them.

        Returns:
            Their positions Int64[n], and the rows each may attend to, Bool[n, rows], including itself; None for all.
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
            return placed, None  # a chain
        seen = np.ones((len(above), self.committed + count), np.bool_)
        seen[:, self.committed :] = self._ancestors[before:count, :count]
        return placed, torch.from_numpy(seen).to(device)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values [H, n, d] to the reserved rows; return the keys and values of all rows [H, rows, d]."""
        count = keys.shape[1]
        held_keys, held_values, end = self.reserve(layer, count, (keys.shape[0], keys.shape[2]), keys)
        held_keys[:, end - count : end], held_values[:, end - count : end] = keys, values
        return held_keys[:, :end], held_values[:, :end]

    def reserve(self, layer: int, count: int, shape: tuple[int, int], like: Tensor) -> tuple[Tensor, Tensor, int]:
        """Return the buffers [H, room, d] of a layer's keys and values, and the number of rows, including the new ones.

        Args:
            layer: index of the layer.
            count: number of reserved rows that the caller will write; they are the last ones.
            shape: H and d.
            like: tensor with the dtype and device of keys and values.
        """
        end = self.committed + self.drafted
        return *self._grown(layer, end, end - count, shape, like), end

    def spare(self, layer: int, count: int, shape: tuple[int, int], like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the buffers [H, room, d] of a layer's keys and values, with room for `count` temporary rows."""
        return self._grown(layer, self.committed + count, self.committed, shape, like)

    def _grown(self, layer: int, end: int, written: int, shape: tuple[int, int], like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the buffers of a layer with room for `end` rows, preserving the first `written`."""
        for held in (self._keys, self._values):
            old = held[layer]
            if old is None or old.shape[1] < end:
                held[layer] = grown = like.new_empty(shape[0], end + _ROOM, shape[1])
                if old is not None:
                    grown[:, :written] = old[:, :written]
        return self._find_buffers(layer)

    def rows(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values [H, rows, d] of all rows in a layer."""
        end = self.committed + self.drafted
        keys, values = self._find_buffers(layer)
        return keys[:, :end], values[:, :end]

    def drop(self) -> None:
        """Drop the rows of the draft."""
        self._parents, self._depths = [], []

    def crop(self, length: int) -> None:
        """Drop the rows of the draft, and those of all tokens from position `length` on."""
        self.drop()
        self.committed = max(0, min(self.committed, length - self.first))

    def _find_buffers(self, layer: int) -> tuple[Tensor, Tensor]:
        keys, values = self._keys[layer], self._values[layer]
        assert keys is not None
        assert values is not None
        return keys, values
