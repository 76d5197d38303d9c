"""Attention of several sequences in one call: each sequence's new rows go to its own cache and attend to it alone.

The compiled code gets one struct of arguments per sequence, the same as if that sequence were decoded alone, and
computes each row in the same order: its result is that of the sequence alone to the last bit. Everything but the
addresses is equal in all layers of a pass, so it is worked out once per pass (`BatchCache.prepared`).

A pass is left to `BatchCache.attend` if any of its sequences would not be computed by `attention.cpp` alone: without
shared key-value heads, with too many rows, or with an empty cache.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from speculant.engines.hf.batch_attention import BatchCache
from speculant.engines.hf.caches.in_place_layer import FirstRows, InPlaceLayer
from speculant.engines.hf.cpu.gqa import AttentionArguments, GQAttention


@dataclass(frozen=True, slots=True, eq=False)
class BatchRows:
    """The rows of a layer in the caches of several sequences, followed by their new rows.

    Attributes:
        cache: the caches of the pass.
        layer: index of the layer.
        each: the cache layer of each sequence, what it held when this was looked up, and the rows with the new ones.
    """

    cache: BatchCache
    layer: int
    each: Sequence[tuple[InPlaceLayer, object, FirstRows]]

    def take(self) -> bool:
        """Append the new rows, which the caller writes; False, and nothing appended, if a cache changed meanwhile."""
        if any(layer.held is not before for layer, before, _ in self.each):
            return False
        for layer, _, rows in self.each:
            layer.hold(rows)
        self.cache.attended_elsewhere(self.layer)
        return True


def as_array(call: AttentionArguments) -> ctypes.Array[AttentionArguments]:
    """Return the arguments of a single call as an array."""
    return (AttentionArguments * 1)(call)


def batch_calls(
    attend: GQAttention,
    module: Any,
    cache: BatchCache,
    kind: int,
    shape: Sequence[int],
    dtype: torch.dtype,
    options: Mapping[str, Any],
) -> tuple[BatchRows, ctypes.Array[AttentionArguments]] | None:
    """Return the rows of a layer in each cache and the arguments of each sequence's attention; None if unsupported.

    Args:
        attend: the attention that each sequence has alone.
        module: the attention module.
        cache: the caches of the pass.
        kind: the kind of layer, as in `BatchCache.sequences`.
        shape: [1, H, n, D] of the queries of all sequences.
        dtype: dtype of the layer.
        options: options of the attention call.
    """
    sequences, index = cache.sequences(attend.name, kind), module.layer_idx
    if sequences is None or sum(count for _, count, _ in sequences) != shape[2]:
        return None
    each = list[tuple[InPlaceLayer, object, FirstRows]]()
    for held, count, _ in sequences:
        layer = held.layers[index] if index < len(held.layers) else None
        if type(layer) is not InPlaceLayer or not layer.is_initialized:
            return None
        extended = layer.extend_unread(count)
        if extended is None:  # its buffers are full
            layer.reserve(count)
            extended = layer.extend_unread(count)
        if extended is None or extended.buffers[0].dtype is not dtype:
            return None
        each.append((layer, layer.held, extended))
    groups, causal = getattr(module, "num_key_value_groups", 1), getattr(module, "is_causal", True)
    key = (kind, *shape, groups, causal, module.scaling, dtype, *sorted(options))
    known = cache.prepared.get(key)
    if known is None:
        found = [
            _arguments(attend, module, (rows[0], rows[1]), count, mask, shape, options)
            for (_, _, rows), (_, count, mask) in zip(each, sequences, strict=True)
        ]
        served = [call for call in found if call is not None]
        if len(served) == len(found):
            known = [_form(rows) for _, _, rows in each], (AttentionArguments * len(served))(*served)
        cache.prepared[key] = known or ()
    if not known:
        return None
    forms, calls = known[0], type(known[1]).from_buffer_copy(known[1])
    for (_, _, rows), expected, call in zip(each, forms, calls, strict=True):
        if _form(rows) != expected:
            return None
        keys, values = rows.buffers
        call.k, call.v = keys.data_ptr(), values.data_ptr()
        call.k_head_step, call.v_head_step = keys.stride(1), values.stride(1)
    return BatchRows(cache, index, each), calls


def _form(rows: FirstRows) -> tuple[Any, ...]:
    """Return what the arguments of a sequence's attention depend on besides addresses and the room in its buffers."""
    keys, values = rows.buffers
    (batch, heads, _, size), (own_batch, own_heads, _, own_size) = keys.shape, values.shape
    return rows.length, batch, heads, size, own_batch, own_heads, own_size, values.dtype


def _arguments(
    attend: GQAttention,
    module: Any,
    rows: tuple[torch.Tensor, torch.Tensor],
    count: int,
    mask: torch.Tensor | None,
    shape: Sequence[int],
    options: Mapping[str, Any],
) -> AttentionArguments | None:
    """Return the arguments that a sequence would have alone; None if it would not be computed by `attention.cpp`."""
    own = (1, shape[1], count, shape[3])
    if rows[0].shape[0] != 1 or not attend.serves(module, own, rows[0], mask, options):
        return None
    return attend.arguments(own, *rows, mask, module.scaling)
