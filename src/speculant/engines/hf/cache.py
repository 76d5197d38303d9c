"""A cache whose rows are written in place: nothing is allocated or concatenated per round.

Each layer owns two buffers [1, H, C, D] that double when they are full; `keys` and `values` are views of the rows in
use. The cache itself is transformers' own DynamicCache, so it goes back to users and into `model.generate` like any
other: where something else than this file put new tensors in the place of the views, they are taken over.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from speculant.core.errors import UnsupportedError
from speculant.core.tree import Bool

LEAST_ROWS = 128


class InPlaceLayer(DynamicLayer):  # type: ignore[misc]
    """The keys and values of one layer."""

    keys: Tensor
    values: Tensor
    is_initialized: bool

    def __init__(self) -> None:
        super().__init__()
        self._key_rows: Tensor | None = None
        self._value_rows: Tensor | None = None

    @classmethod
    def adopt(cls, layer: DynamicLayer) -> InPlaceLayer:
        """Return a layer that holds what another one does; the rows are copied at the first update."""
        if isinstance(layer, cls):
            return layer
        adopted = cls()
        if layer.is_initialized and layer.get_seq_length():
            adopted.keys, adopted.values = layer.keys, layer.values
            adopted.dtype, adopted.device, adopted.is_initialized = layer.keys.dtype, layer.keys.device, True
        return adopted

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Add rows [B, H, n, D] and return all of them, [B, H, L + n, D]."""
        if key_states.requires_grad:  # a gradient needs the rows as they were
            updated: tuple[Tensor, Tensor] = super().update(key_states, value_states, *args, **kwargs)
            return updated
        if not self.is_initialized:
            self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
        self._key_rows, self.keys = _append(self._key_rows, self.keys, key_states)
        self._value_rows, self.values = _append(self._value_rows, self.values, value_states)
        return self.keys, self.values

    @classmethod
    def prefix(cls, layer: DynamicLayer, length: int, room: int) -> InPlaceLayer:
        """Return a layer with copies of another's first rows, in buffers for `room` rows."""
        copy = cls()
        if layer.is_initialized:
            copy._key_rows, copy.keys = _copied(layer.keys, length, room)
            copy._value_rows, copy.values = _copied(layer.values, length, room)
            copy.dtype, copy.device, copy.is_initialized = layer.keys.dtype, layer.keys.device, True
        return copy

    @property
    def nbytes(self) -> int:
        """The bytes of its buffers, rows that are not in use included."""
        if not self.is_initialized:
            return 0
        rows = (self._key_rows, self.keys), (self._value_rows, self.values)
        return sum((held if buffer is None else buffer).nbytes for buffer, held in rows)

    def extend(self, count: int) -> tuple[Tensor, Tensor] | None:
        """Return all rows with `count` new ones behind them, which the caller writes; None where there is no room."""
        keys, values = self._key_rows, self._value_rows
        if not self.is_initialized or keys is None or values is None:
            return None
        length = self.keys.shape[-2]
        end = length + count
        for buffer, held in ((keys, self.keys), (values, self.values)):
            if end > buffer.shape[-2] or not _is_view(held, buffer, held, length):
                return None
        self.keys, self.values = keys[..., :end, :], values[..., :end, :]
        return self.keys, self.values

    def reset(self) -> None:
        """Forget every row; the buffers stay."""
        self.keys = self.values = None  # type: ignore[assignment]
        self.is_initialized = False

    def keep(self, start: int, rows: list[int] | Tensor) -> None:
        """Keep the first `start` rows and, behind them, those at `start` + each of the rising `rows`."""
        if not self.is_initialized:  # a layer that shares another's rows
            return
        end = start + len(rows)
        if len(rows):
            index = torch.as_tensor(rows, device=self.keys.device) + start
            for held in (self.keys, self.values):
                held[..., start:end, :] = held.index_select(-2, index)
        self.keys, self.values = self.keys[..., :end, :], self.values[..., :end, :]


def _copied(held: Tensor, length: int, room: int) -> tuple[Tensor, Tensor]:
    """Return a buffer with copies of the first rows, and the view of them."""
    buffer = held.new_empty((*held.shape[:-2], max(length, room), held.shape[-1]))
    buffer[..., :length, :] = held[..., :length, :]
    return buffer, buffer[..., :length, :]


def _append(buffer: Tensor | None, held: Tensor | None, new: Tensor) -> tuple[Tensor, Tensor]:
    """Write rows behind those held; return the buffer, a larger one if need be, and the view of its used part."""
    length = 0 if held is None or not held.numel() else held.shape[-2]
    needed = length + new.shape[-2]
    if buffer is None or needed > buffer.shape[-2] or not _is_view(held, buffer, new, length):
        capacity = max(needed, LEAST_ROWS, 2 * length)
        buffer = new.new_empty((*new.shape[:-2], capacity, new.shape[-1]))
        if length:
            assert held is not None
            buffer[..., :length, :] = held
    buffer[..., length:needed, :] = new
    return buffer, buffer[..., :needed, :]


def _is_view(held: Tensor | None, buffer: Tensor, new: Tensor, length: int) -> bool:
    same = buffer.dtype == new.dtype and buffer.device == new.device and buffer.shape[:-2] == new.shape[:-2]
    if buffer.is_inference() != torch.is_inference_mode_enabled():  # torch lets those be written only in their own mode
        return False
    if not same or not length:
        return same
    assert held is not None
    return held.data_ptr() == buffer.data_ptr() and held.stride() == buffer.stride()


def usable_cache(cache: Any) -> DynamicCache:
    """Return a cache of in-place layers, which any subset of rows can be kept of.

    A given DynamicCache is returned itself, its layers exchanged for ones that hold the same. `generate` hands sliding
    layers to models with windows; those forget rows that a rollback needs, so while they are empty the whole cache is
    replaced. The window is enforced by the mask instead.

    Raises:
        UnsupportedError: the cache holds something and cannot be rolled back, or is of another kind.
    """
    if cache is None:
        cache = DynamicCache()
    if type(cache) is not DynamicCache or getattr(cache, "offloading", False):
        raise UnsupportedError(
            f"a {type(cache).__name__} cannot keep the accepted rows of a tree; leave out `cache_implementation` "
            "and `past_key_values`, or pass a DynamicCache()."
        )
    kinds = {type(layer) for layer in cache.layers} - {DynamicLayer, InPlaceLayer}
    if kinds and cache.get_seq_length():
        raise UnsupportedError(
            f"the cache holds layers that cannot be rolled back ({', '.join(sorted(kind.__name__ for kind in kinds))})."
            " Start with `DynamicCache()` made without a config, which keeps every row."
        )
    if kinds:
        cache = DynamicCache()
    cache.layers = [InPlaceLayer.adopt(layer) for layer in cache.layers]
    cache.layer_class_to_replicate = InPlaceLayer
    return cache


def copy_prefix(cache: DynamicCache, length: int, *, room: int) -> DynamicCache:
    """Return a cache with copies of the first `length` rows, and room for so many rows in all."""
    copy = usable_cache(None)
    copy.layers = [InPlaceLayer.prefix(layer, length, room) for layer in cache.layers]
    return copy


def held_bytes(cache: DynamicCache) -> int:
    """Return the bytes of a cache from `usable_cache`, rows that are not in use included."""
    return sum(layer.nbytes for layer in cache.layers)


def compacted(cache: DynamicCache) -> DynamicCache:
    """Return the cache itself, or a copy in buffers that fit where more than a quarter of its own is not in use."""
    used = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers if layer.is_initialized)
    length = cache.get_seq_length()
    return cache if 4 * used >= 3 * held_bytes(cache) else copy_prefix(cache, length, room=length)


def crop_cache(cache: DynamicCache, length: int) -> None:
    """Keep the first `length` rows, for a prompt that shares only those.

    The cache's own `crop` counts differently from one release of transformers to the next.
    """
    keep_rows(cache, length, [])


def keep_rows(cache: DynamicCache, start: int, rows: list[int]) -> None:
    """Keep the first `start` rows of every layer and, behind them, those at `start` + each of the rising `rows`."""
    still = next((place for place, row in enumerate(rows) if place != row), len(rows))  # these are where they belong
    moved: list[int] | Tensor = [row - still for row in rows[still:]]
    for layer in cache.layers:
        if layer.is_initialized:
            if len(moved):
                moved = torch.as_tensor(moved, device=layer.keys.device)  # one copy for all layers of a device
            layer.keep(start + still, moved)


def layer_rows(cache: DynamicCache, layer: int, length: int, *, seen: Bool | None) -> tuple[Tensor, Tensor]:
    """Return the keys and values [H, T, d] of a cache's first `length` tokens in one layer, without padding.

    Args:
        cache: of one sequence.
        layer: counted from 0; -1 is the last.
        length: of the committed text.
        seen: Bool[T'], False at padding, of the prompt; None without padding.

    Raises:
        UnsupportedError: the layer keeps none of its own, or not all tokens.
    """
    layers = cache.layers
    held = layers[layer] if -len(layers) <= layer < len(layers) else None
    if held is None or not held.is_initialized or held.keys.shape[-2] < length:
        raise UnsupportedError(
            f"layer {layer} of this model keeps no keys and values of its own, or not those of all tokens; use a "
            "head that reads none."
        )
    keys, values = held.keys[0, :, :length], held.values[0, :, :length]
    if seen is not None:
        rows = np.flatnonzero(np.concatenate([seen, np.ones(max(0, length - len(seen)), bool)]))
        index = torch.from_numpy(rows[rows < length]).to(keys.device)
        keys, values = keys[:, index], values[:, index]
    return keys, values
