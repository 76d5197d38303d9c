"""Where the rows of a cache lie in all layers of a model, for compiled code: looked up once, while the buffers stay.

To look up each layer's buffers in every pass, for every sequence of a batch, takes a notable part of the pass of a
small model. What remains are comparisons that run in functions that are compiled themselves.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter, is_
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from speculant.engines.hf.caches.in_place_layer import FirstRows, InPlaceLayer
from speculant.engines.hf.cpu.gqa import AttentionArguments
from speculant.engines.hf.cpu.products import DTYPES

Arguments = npt.NDArray[np.void]  # structs `Attention` of attention.h
ARGUMENTS = np.dtype(AttentionArguments)
PLACES = ("k", "v", "k_batch_step", "k_head_step", "v_batch_step", "v_head_step")
_HELD, _BUFFERS, _LENGTH = attrgetter("held"), attrgetter("buffers"), attrgetter("length")


@dataclass(frozen=True, slots=True, eq=False)
class ExtendedRows:
    """The rows of a cache followed by new ones, which are not in use yet.

    Attributes:
        layers: the layers of the cache.
        held: what each layer held when this was looked up.
        rows: the rows with the new ones.
        cached: the cache's rows.
    """

    layers: Sequence[InPlaceLayer]
    held: Sequence[FirstRows]
    rows: Sequence[FirstRows]
    cached: CachedRows

    def is_unchanged(self) -> bool:
        """Return whether the layers still hold what they held when this was looked up."""
        return all(map(is_, map(_HELD, self.layers), self.held))

    def take(self) -> None:
        """Append the new rows, which the caller writes."""
        for layer, rows in zip(self.layers, self.rows, strict=True):
            layer.hold(rows)


class CachedRows:
    """The rows of one cache in layers whose rows are alike.

    Attributes:
        dtype: dtype of the rows.
        places: structs [L], of which what the buffers determine is set.
        calls: structs [L] of calls with everything but lengths and masks, by what they depend on besides the buffers.
    """

    def __init__(self, layers: Sequence[InPlaceLayer], held: Sequence[FirstRows], places: Arguments) -> None:
        """Take what `find` has looked up.

        Args:
            layers: L layers of the cache.
            held: what they hold.
            places: structs [L], of which what the buffers determine is set.
        """
        self._layers, self.places = layers, places
        self.calls: dict[Any, Arguments] = {}
        self.dtype = held[0].buffers[0].dtype
        self._buffers = [rows.buffers for rows in held]
        self._room = min(each.shape[2] for pair in self._buffers for each in pair)
        self._inference = self._buffers[0][0].is_inference()

    @classmethod
    def find(cls, layers: Sequence[Any], dtype: torch.dtype, count: int) -> CachedRows | None:
        """Look up rows; return None if compiled code cannot append to each of the layers alike.

        Args:
            layers: layers of a cache.
            dtype: dtype of the model's layers.
            count: number of new rows for which there will be room.
        """
        if dtype not in DTYPES or set(map(type, layers)) != {InPlaceLayer}:
            return None
        if not all(layer.is_initialized for layer in layers) or len({layer.get_seq_length() for layer in layers}) > 1:
            return None
        held, forms, places = list[FirstRows](), set[Any](), np.zeros(len(layers), ARGUMENTS)
        places["is_bf16"] = dtype is torch.bfloat16
        for layer, place in zip(layers, places, strict=True):
            if layer.extend_unread(count) is None:  # its buffers are full
                layer.reserve(count)
            rows = layer.extend_unread(0)
            if rows is None:
                return None
            layer.hold(rows)
            held.append(rows)
            keys, values = rows.buffers
            batch, heads, _, size = keys.shape
            form, other = ((each.dtype, each.is_cpu, each.shape[:2], each.stride()[2:]) for each in rows.buffers)
            if form != other or form != (dtype, True, (batch, heads), (size, 1)):
                return None
            forms.add((batch, heads, size))
            place["batch"], place["kv_heads"], place["head"] = batch, heads, size
            found = (keys.data_ptr(), values.data_ptr(), *keys.stride()[:2], *values.stride()[:2])
            for name, number in zip(PLACES, found, strict=True):
                place[name] = number
        return cls(list(layers), held, places) if len(forms) == 1 else None

    def extend(self, layers: Sequence[Any], count: int) -> ExtendedRows | None:
        """Return the rows followed by `count` new ones; None if other buffers hold them by now, or these are full."""
        held: list[Any] = list(map(_HELD, self._layers))
        if layers != self._layers or set(map(type, held)) != {FirstRows}:
            return None
        lengths = set(map(_LENGTH, held))
        if len(lengths) > 1 or not all(map(is_, map(_BUFFERS, held), self._buffers)):
            return None
        end = lengths.pop() + count
        if end > self._room or torch.is_inference_mode_enabled() is not self._inference:
            return None
        return ExtendedRows(self._layers, held, [FirstRows(each, end) for each in self._buffers], self)

    def keep(self, native: ctypes.CDLL, layers: Sequence[Any], start: int, rows: Sequence[int]) -> bool:
        """Keep the first `start` rows, followed by those at `start` + each of the ascending `rows`.

        Args:
            native: the compiled code.
            layers: all layers of the cache.
            start: number of rows before those that may move.
            rows: rows to keep, counted from `start`.

        Returns:
            False, and nothing changed, if other buffers hold the rows by now, or there are not as many.
        """
        found, end = self.extend(layers, 0), start + len(rows)
        if found is None or (start + rows[-1] if rows else start - 1) >= found.rows[0].length:
            return False
        if rows:
            moved = np.array(rows, np.int64) + start
            native.move_rows(self.places.ctypes.data, len(self._layers), moved.ctypes.data, start, len(moved))
        for layer, buffers in zip(self._layers, self._buffers, strict=True):
            layer.hold(FirstRows(buffers, end))
        return True
