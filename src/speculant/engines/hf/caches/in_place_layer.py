"""A layer of keys and values with rows written in place: nothing is allocated or concatenated per round.

It owns two buffers [1, H, C, D] that double when they are full; `keys` and `values` are views of the rows in use. Users
and `model.generate` get it with its cache: if other code replaces the views by new tensors, these are adopted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

MIN_ROWS = 128
_NOTHING: Any = (None, None)


class FirstRows:
    """The first rows of a buffer of keys and of one of values: a pair of views, which are made when first read.

    Attributes:
        buffers: keys and values, [B, H, C, D] each.
        length: number of rows.
    """

    __slots__ = ("_views", "buffers", "length")

    def __init__(self, buffers: tuple[Tensor, Tensor], length: int) -> None:
        self.buffers, self.length = buffers, length
        self._views: tuple[Tensor, Tensor] | None = None

    def __getitem__(self, place: int) -> Tensor:
        views = self._views
        if views is None:
            keys, values = self.buffers
            self._views = views = keys[..., : self.length, :], values[..., : self.length, :]
        return views[place]

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self[0], self[1]))


class InPlaceLayer(DynamicLayer):  # type: ignore[misc]
    """The keys and values of one layer.

    They change together, in one assignment, so that after a full device or an interrupt a layer has as many keys as
    values.

    Attributes:
        held: the rows in use, as an object that is replaced when they change; None twice before the first.
    """

    is_initialized: bool

    def __init__(self) -> None:
        self.held: tuple[Tensor, Tensor] | FirstRows = _NOTHING
        self._key_rows: Tensor | None = None
        self._value_rows: Tensor | None = None
        super().__init__()

    @property
    def keys(self) -> Tensor:
        """The keys of the rows in use, [B, H, L, D]; None before the first."""
        return self.held[0]

    @keys.setter
    def keys(self, keys: Tensor) -> None:
        self.held = keys, self.held[1]

    @property
    def values(self) -> Tensor:
        """The values of the rows in use, [B, H, L, D]; None before the first."""
        return self.held[1]

    @values.setter
    def values(self, values: Tensor) -> None:
        self.held = self.held[0], values

    @classmethod
    def adopt(cls, layer: DynamicLayer) -> InPlaceLayer:
        """Return a layer with the contents of another one; the rows are copied at the first update."""
        if isinstance(layer, cls):
            return layer
        adopted = cls()
        if layer.is_initialized and layer.get_seq_length():
            adopted.keys, adopted.values = layer.keys, layer.values
            adopted.dtype, adopted.device, adopted.is_initialized = layer.keys.dtype, layer.keys.device, True
        return adopted

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append rows [B, H, n, D] and return all of them, [B, H, L + n, D]."""
        if key_states.requires_grad:  # gradients need the previous rows unchanged
            updated: tuple[Tensor, Tensor] = super().update(key_states, value_states, *args, **kwargs)
            return updated
        held: Any = self.held if self.is_initialized else _NOTHING
        key_rows, keys = append_rows(self._key_rows, held[0], key_states)
        value_rows, values = append_rows(self._value_rows, held[1], value_states)
        self._key_rows, self._value_rows = key_rows, value_rows
        self.dtype, self.device = key_states.dtype, key_states.device
        self.held = keys, values
        self.is_initialized = True
        return keys, values

    @classmethod
    def prefix(cls, layer: DynamicLayer, length: int, room: int) -> InPlaceLayer:
        """Return a layer with copies of another's first rows, in buffers for `room` rows."""
        copy = cls()
        copy._take_prefix(layer, length, room)
        return copy

    def _take_prefix(self, layer: DynamicLayer, length: int, room: int) -> None:
        if layer.is_initialized:
            self._key_rows, keys = _copy_rows(layer.keys, length, room)
            self._value_rows, values = _copy_rows(layer.values, length, room)
            self.held = keys, values
            self.dtype, self.device, self.is_initialized = layer.keys.dtype, layer.keys.device, True

    @property
    def nbytes(self) -> int:
        """The size of its buffers in bytes, including unused rows."""
        return self.rows_nbytes

    @property
    def rows_nbytes(self) -> int:
        """The size of its key and value buffers in bytes."""
        if not self.is_initialized:
            return 0
        rows = (self._key_rows, self.keys), (self._value_rows, self.values)
        return sum((held if buffer is None else buffer).nbytes for buffer, held in rows)

    def hold(self, rows: tuple[Tensor, Tensor] | FirstRows) -> None:
        """Put the rows that `extend` or `extend_unread` returned into use."""
        self.held = rows

    def get_seq_length(self) -> int:
        """Return the number of rows in use."""
        held = self.held
        if self.is_initialized and type(held) is FirstRows and held.buffers[0].numel():
            return held.length
        return int(super().get_seq_length())

    def extend(self, count: int) -> tuple[Tensor, Tensor] | None:
        """Return all rows followed by `count` new ones, which the caller writes; None if there is no room.

        They are not in use until `hold`.
        """
        keys, values = self._key_rows, self._value_rows
        if not self.is_initialized or keys is None or values is None:
            return None
        length = self.keys.shape[-2]
        end = length + count
        for buffer, held in ((keys, self.keys), (values, self.values)):
            if end > buffer.shape[-2] or not _is_view(held, buffer, held, length):
                return None
        return keys[..., :end, :], values[..., :end, :]

    def extend_unread(self, count: int) -> FirstRows | None:
        """Return what `extend` does, for code that needs no more than the buffers: no tensor is made."""
        held, key_rows, value_rows = self.held, self._key_rows, self._value_rows
        if self.is_initialized and type(held) is FirstRows:
            keys, values = held.buffers
            if keys is key_rows and values is value_rows:
                fits = held.length + count <= min(keys.shape[-2], values.shape[-2])
                writable = keys.is_inference() is values.is_inference() is torch.is_inference_mode_enabled()
                return FirstRows(held.buffers, held.length + count) if fits and writable else None
        extended = self.extend(count)
        if extended is None or key_rows is None or value_rows is None:
            return None
        return FirstRows((key_rows, value_rows), extended[0].shape[-2])

    def reserve(self, count: int) -> None:
        """Make room for `count` further rows, as `update` would."""
        length = self.keys.shape[-2]
        room = max(length + count, MIN_ROWS, 2 * length)
        key_rows, keys = _copy_rows(self.keys, length, room)
        value_rows, values = _copy_rows(self.values, length, room)
        self._key_rows, self._value_rows, self.held = key_rows, value_rows, (keys, values)

    def reset(self) -> None:
        """Drop all rows; the buffers stay."""
        self.is_initialized, self.held = False, _NOTHING

    def keep(self, start: int, rows: list[int] | Tensor) -> None:
        """Keep the first `start` rows, followed by those at `start` + each of the ascending `rows`."""
        if not self.is_initialized:  # a layer that shares another's rows
            return
        end, known = start + len(rows), self.held
        length = known.length if type(known) is FirstRows else known[0].shape[-2]
        if not len(rows) and end == length:  # all are kept, as after every plain round
            return
        if len(rows):
            index = torch.as_tensor(rows, device=self.keys.device) + start
            for held in self.held:
                held[..., start:end, :] = held.index_select(-2, index)
        if type(known) is FirstRows:
            self.held = FirstRows(known.buffers, end)
            return
        keys, values = known
        self.held = keys[..., :end, :], values[..., :end, :]


class SourceCacheLayer(InPlaceLayer):
    """The keys and values for a cross-attention layer: rows of an image, not of the text's tokens.

    They are computed by the prompt's pass and stay as long as any of the text is kept.
    """

    def keep(self, start: int, rows: list[int] | Tensor) -> None:
        """Keep all rows, or none if none of the text is kept."""
        if not start and not len(rows):
            self.reset()

    def _take_prefix(self, layer: DynamicLayer, length: int, room: int) -> None:
        if layer.is_initialized:
            count = layer.keys.shape[-2]
            super()._take_prefix(layer, count, count)


def _copy_rows(held: Tensor, length: int, room: int) -> tuple[Tensor, Tensor]:
    """Return a buffer with copies of the first rows, and a view of them."""
    buffer = held.new_empty((*held.shape[:-2], max(length, room), held.shape[-1]))
    buffer[..., :length, :] = held[..., :length, :]
    return buffer, buffer[..., :length, :]


def append_rows(buffer: Tensor | None, held: Tensor | None, new: Tensor) -> tuple[Tensor, Tensor]:
    """Append rows [..., n, D]; return the buffer, or a larger one, and the view of its used part."""
    length = 0 if held is None or held.ndim < 2 else held.shape[-2]  # heads may have size 0
    needed = length + new.shape[-2]
    if buffer is None or needed > buffer.shape[-2] or not _is_view(held, buffer, new, length):
        capacity = max(needed, MIN_ROWS, 2 * length)
        buffer = new.new_empty((*new.shape[:-2], capacity, new.shape[-1]))
        if length:
            assert held is not None
            buffer[..., :length, :] = held
    buffer[..., length:needed, :] = new
    return buffer, buffer[..., :needed, :]


def _is_view(held: Tensor | None, buffer: Tensor, new: Tensor, length: int) -> bool:
    same = buffer.dtype == new.dtype and buffer.device == new.device and buffer.shape[:-2] == new.shape[:-2]
    if buffer.is_inference() != torch.is_inference_mode_enabled():  # torch allows writes only in the same mode
        return False
    if not same or not length:
        return same
    assert held is not None
    return held.data_ptr() == buffer.data_ptr() and held.stride() == buffer.stride()
