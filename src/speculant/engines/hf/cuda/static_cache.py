"""The inputs and outputs of a recorded pass in buffers at fixed addresses: keys and values, a draft, its masks.

A CUDA graph works on the memory that it was recorded with, so a request's keys and values must be there while it is
decoded. The buffers are put under the layers of `cache.py`, which work as before: passes that were not recorded append
to the same rows. When another request's cache moves in, the previous one gets a copy of its rows; the buffers are
cleared after the new rows, since a weight of zero does not hide NaNs.

Layers of equal shape share one tensor, so accepted rows are moved together in two calls, not in two for each layer.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from speculant.core.tree import Int64
from speculant.engines.hf.caches.in_place_layer import InPlaceLayer
from speculant.engines.hf.draft_rows import DraftRows
from speculant.engines.hf.probe.capabilities import HFCapabilities

IDS, POSITIONS, SLOTS, ANCESTORS = 0, 1, 2, 3  # offsets of the parts of a draft's input


class StaticBuffers:
    """Buffers [1, H, C, D] for the keys and values of every layer, used by one cache at a time."""

    def __init__(self, like: DynamicCache, capacity: int) -> None:
        """Allocate the buffers.

        Args:
            like: a cache of one sequence, from `usable_cache`, in which every layer has rows.
            capacity: rows C.

        Raises:
            ValueError: a layer has no rows, such as one that reads another layer's rows.
        """
        if not like.layers or not all(layer.is_initialized for layer in like.layers):
            raise ValueError("some of its layers keep no keys and values of their own")
        held = [tensor for layer in like.layers for tensor in (layer.keys, layer.values)]
        places: dict[Any, list[int]] = {}
        for place, tensor in enumerate(held):
            places.setdefault((tensor.shape[1], tensor.shape[3], tensor.dtype, tensor.device), []).append(place)
        self.capacity = capacity
        self._places = list(places.values())
        with torch.inference_mode(False):  # tensors made in that mode could only be written in it
            self._stacks = [
                torch.zeros((len(each), heads, capacity, width), dtype=dtype, device=device)
                for (heads, width, dtype, device), each in places.items()
            ]
        buffers = self._split_stacks(self._stacks)
        self.keys, self.values = buffers[::2], buffers[1::2]
        self._layers: list[weakref.ref[InPlaceLayer]] = []  # of the cache that moved in last

    def holds(self, cache: DynamicCache) -> bool:
        """Return whether a cache's rows are in the buffers."""
        return len(cache.layers) == len(self.keys) and all(
            layer._key_rows is keys and layer._value_rows is values
            for layer, keys, values in zip(cache.layers, self.keys, self.values, strict=True)
        )

    def holds_other(self, cache: DynamicCache) -> bool:
        """Return whether the rows of another cache are in the buffers."""
        own = {id(layer) for layer in cache.layers}
        return any(id(layer) not in own for layer in self._users())

    def move_in(self, cache: DynamicCache) -> None:
        """Move a cache's rows, at most C, into the buffers; the cache that used them before gets its own copy."""
        if self.holds(cache):
            return
        for layer in self._users():
            layer.keys, layer.values = layer.keys.clone(), layer.values.clone()
            layer._key_rows = layer._value_rows = None
        length = cache.get_seq_length()
        for stack in self._stacks:
            stack[:, :, length:].zero_()
        for layer, keys, values in zip(cache.layers, self.keys, self.values, strict=True):
            keys[..., :length, :].copy_(layer.keys)
            values[..., :length, :].copy_(layer.values)
            layer._key_rows, layer._value_rows = keys, values
        self._layers = [weakref.ref(layer) for layer in cache.layers]
        self.set_length(cache, length)

    def set_length(self, cache: DynamicCache, length: int) -> None:
        """Set the number of rows of the cache in the buffers."""
        views = self._split_stacks([stack.narrow(2, 0, length) for stack in self._stacks])
        for layer, keys, values in zip(cache.layers, views[::2], views[1::2], strict=True):
            layer.keys, layer.values = keys, values

    def keep(self, cache: DynamicCache, start: int, rows: list[int]) -> None:
        """Keep rows as `keep_rows` does, for the cache in the buffers."""
        end = start + len(rows)
        if rows != list(range(len(rows))):
            for stack in self._stacks:
                index = to_device(np.array(rows, np.int64) + start, stack.device)
                stack[:, :, start:end] = stack.index_select(2, index)
        self.set_length(cache, end)

    def _users(self) -> list[InPlaceLayer]:
        """Return the layers whose rows are in the buffers: those alive without larger buffers of their own."""
        alive = [(reference(), keys) for reference, keys in zip(self._layers, self.keys, strict=False)]
        return [layer for layer, keys in alive if layer is not None and layer._key_rows is keys]

    def _split_stacks(self, stacks: Sequence[Tensor]) -> list[Tensor]:
        """Return the keys and values of the first layer, of the second, ..., [1, H, ., D] each."""
        found = {
            place: tensor
            for places, stack in zip(self._places, stacks, strict=True)
            for place, tensor in zip(places, torch.split(stack, 1), strict=True)
        }
        return [found[place] for place in range(len(found))]


class StaticCache(DynamicCache):  # type: ignore[misc]
    """The cache seen by a recorded pass: writes rows at the slots, Int64[R], and attends to the first L."""

    def __init__(self, buffers: StaticBuffers, slots: Tensor, length: int) -> None:
        super().__init__()
        self._buffers, self._slots, self._length = buffers, slots, length

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """Write [1, H, R, D] and return [1, H, L, D]."""
        keys, values = self._buffers.keys[layer_idx], self._buffers.values[layer_idx]
        keys.index_copy_(2, self._slots, key_states)
        values.index_copy_(2, self._slots, value_states)
        return keys[..., : self._length, :], values[..., : self._length, :]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return a length that fits the shapes; positions and masks are given and do not depend on it."""
        return self._length - len(self._slots)


def draft_input(tokens: Int64, rows: DraftRows, width: int, start: int, shift: int) -> Int64:
    """Return Int64[R + 3, R]: ids, positions and slots of a draft and padding, then the rows each row attends to.

    Padding rows attend to the committed text and themselves.

    Args:
        tokens: Int64[n], n at most R.
        rows: the n rows.
        width: R.
        start: number of committed tokens.
        shift: cache slot minus position.
    """
    count = len(tokens)
    found = np.zeros((width + ANCESTORS, width), np.int64)
    found[IDS, :count] = tokens
    found[POSITIONS] = start - shift
    found[POSITIONS, :count] += rows.depths - 1
    found[SLOTS] = np.arange(start, start + width)
    found[ANCESTORS:] = np.eye(width, dtype=np.int64)
    found[ANCESTORS : ANCESTORS + count, :count] = rows.ancestors
    return found


def blank_input(width: int, start: int = 0, shift: int = 0) -> Int64:
    """Return the input of an empty draft, all of it padding."""
    return draft_input(np.empty(0, np.int64), DraftRows(), width, start, shift)


def masks(inputs: Tensor, seen: Tensor, columns: Tensor, capabilities: HFCapabilities, dtype: torch.dtype) -> Any:
    """Return the additive mask [1, 1, R, L] of a draft's input, or one for each kind of layer.

    Args:
        inputs: Int64[R + 3, R], see `draft_input`.
        seen: Bool[L], False at padding.
        columns: Int64[L], 0, 1, 2, ...
        capabilities: capabilities of the model.
        dtype: dtype of the mask.
    """
    slots, ancestors = inputs[SLOTS], inputs[ANCESTORS:].bool()
    prefix = seen & (columns < slots[:1])
    full = prefix.expand(len(slots), -1).index_copy(1, slots, ancestors)
    if capabilities.window is None:
        return _additive(full, dtype)
    places = slots[:1] + inputs[POSITIONS] - inputs[POSITIONS, :1]
    sliding = full & (columns.index_copy(0, slots, places) > places[:, None] - capabilities.window)
    if not capabilities.mixed:
        return _additive(sliding, dtype)
    return {"full_attention": _additive(full, dtype), "sliding_attention": _additive(sliding, dtype)}


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    lowest = torch.finfo(dtype).min
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, lowest)[None, None]


def to_device(numbers: Int64, device: torch.device) -> Tensor:
    """Copy the numbers to a device without blocking the host."""
    host = torch.from_numpy(numbers)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host
