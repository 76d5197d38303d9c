"""Attention of the sequences of a pass in one call: each one's new rows go to its own cache and attend to it alone.

The compiled code gets one struct of arguments per sequence, the same as if that sequence were decoded alone, and
computes each row in the same order: its result is that of the sequence alone to the last bit. Everything but the
addresses is equal in all layers of a pass, so it is worked out once per pass.

A pass of several sequences is left to `BatchCache.attend` if any of them would not be computed by `attention.cpp`
alone: without shared key-value heads, with too many rows, or with an empty cache.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from speculant.engines.hf.batch_attention import BatchCache
from speculant.engines.hf.caches.in_place_layer import FirstRows, InPlaceLayer
from speculant.engines.hf.cpu.cached_rows import ARGUMENTS, PLACES, Arguments, CachedRows, ExtendedRows
from speculant.engines.hf.cpu.gqa import (
    AttentionArguments,
    GQAttention,
    attention_settings,
    mask_place,
    needs_other_attention,
)

KnownRows = WeakKeyDictionary[DynamicCache, dict[range, CachedRows]]  # by the layers of a cache


@dataclass(frozen=True, slots=True, eq=False)
class AppendedRows:
    """The rows of a layer in the caches of a pass, followed by their new rows.

    Attributes:
        each: the cache layer of each sequence, what it held when this was looked up, and the rows with the new ones.
        layer: index of the layer.
        batch: the caches of several sequences; None for one cache.
    """

    each: Sequence[tuple[InPlaceLayer, object, FirstRows]]
    layer: int
    batch: BatchCache | None

    def take(self) -> bool:
        """Append the new rows, which the caller writes; False, and nothing appended, if a cache changed meanwhile."""
        if any(layer.held is not before for layer, before, _ in self.each):
            return False
        for layer, _, rows in self.each:
            layer.hold(rows)
        if self.batch is not None:
            self.batch.attended_elsewhere(self.layer)
        return True


@dataclass(frozen=True, slots=True, eq=False)
class CallsOfAll:
    """The rows and arguments of the attention in all of L layers, for S sequences.

    Attributes:
        each: the rows in the cache of each sequence.
        batch: the caches of several sequences; None for one cache.
        structs: structs [L, S].
    """

    each: Sequence[ExtendedRows]
    batch: BatchCache | None
    structs: Arguments

    def of_layer(self, layer: int) -> tuple[AppendedRows, ctypes.Array[AttentionArguments]]:
        """Return the rows and arguments of one layer, as `PassRows.calls` does."""
        each = [(rows.layers[layer], rows.held[layer], rows.rows[layer]) for rows in self.each]
        structs = (AttentionArguments * len(each)).from_buffer(self.structs[layer])
        return AppendedRows(each, layer, self.batch), structs

    def take(self) -> bool:
        """Append the new rows to all layers; False, and nothing appended, if a cache changed meanwhile."""
        if not all(rows.is_unchanged() for rows in self.each):
            return False
        for rows in self.each:
            rows.take()
        if self.batch is not None:
            for layer in range(len(self.structs)):
                self.batch.attended_elsewhere(layer)
        return True


def as_array(call: AttentionArguments) -> ctypes.Array[AttentionArguments]:
    """Return the arguments of a single call as an array."""
    return (AttentionArguments * 1)(call)


class PassRows:
    """The caches of a pass, to which compiled layers append rows, and what the layers' attention has in common."""

    def __init__(
        self, attend: GQAttention, cache: Any, mask: Tensor | None, batch: int, rows: int, options: Mapping[str, Any]
    ) -> None:
        """Look up the sequences.

        Args:
            attend: the attention that each sequence has alone.
            cache: the cache of one sequence or of `batch` of them, or those of several in a `BatchCache`.
            mask: the mask of the pass, a stand-in for several sequences.
            batch, rows: B and n of the pass's rows [B, n, hidden].
            options: options of the attention call.
        """
        self._attend, self._batch = attend, batch
        self._together = cache if type(cache) is BatchCache else None
        self._sequences: Sequence[tuple[DynamicCache, int, Any]] = ()
        self._known: dict[Any, Any] = {}
        self._shared = (None if mask is None else mask.shape[-1], batch, rows, *sorted(options))
        if needs_other_attention(options):
            return
        if self._together is not None:
            found = None if mask is None or batch != 1 else cache.sequences(attend.name, mask.shape[-1])
            if found is not None and sum(count for _, count, _ in found) == rows:
                self._sequences, self._known = found, cache.prepared
        elif type(cache) is DynamicCache:
            self._sequences = [(cache, rows, mask)]

    def calls(
        self, module: Any, heads: int, head: int, dtype: torch.dtype
    ) -> tuple[AppendedRows, ctypes.Array[AttentionArguments]] | None:
        """Return the rows of a layer in each cache and the arguments of each sequence's attention; None if unsupported.

        Args:
            module: the attention module.
            heads, head: number of query heads and their size.
            dtype: dtype of the layer.
        """
        if not self._sequences:
            return None
        index, each = module.layer_idx, list[tuple[InPlaceLayer, object, FirstRows]]()
        for cache, count, _ in self._sequences:
            layer = cache.layers[index] if index < len(cache.layers) else None
            if type(layer) is not InPlaceLayer or not layer.is_initialized:
                return None
            extended = layer.extend_unread(count)
            if extended is None:  # its buffers are full
                layer.reserve(count)
                extended = layer.extend_unread(count)
            if extended is None or extended.buffers[0].dtype is not dtype:
                return None
            each.append((layer, layer.held, extended))
        known = self._known_common(module, heads, head, dtype, [rows for _, _, rows in each])
        if not known:
            return None
        forms, calls = known[0], type(known[1]).from_buffer_copy(known[1])
        for (_, _, rows), expected, call in zip(each, forms, calls, strict=True):
            keys, values = rows.buffers
            if _form(rows) != expected:
                return None
            call.k, call.v = keys.data_ptr(), values.data_ptr()
            call.k_batch_step, call.k_head_step = keys.stride()[:2]
            call.v_batch_step, call.v_head_step = values.stride()[:2]
        return AppendedRows(each, index, self._together), calls

    def calls_of_all(
        self, module: Any, heads: int, head: int, dtype: torch.dtype, layers: range, known: KnownRows
    ) -> CallsOfAll | None:
        """Return what `calls` does, for consecutive layers of each cache together, whose attention is alike.

        Args:
            module: the attention module of any of them.
            heads, head, dtype: see `calls`.
            layers: the L layers.
            known: the rows of caches that were looked up earlier; those of further caches are added.
        """
        found = list[ExtendedRows]()
        for cache, count, _ in self._sequences:
            own, spans = cache.layers[layers.start : layers.stop], known.setdefault(cache, {})
            rows = spans.get(layers)
            extended = None if rows is None or rows.dtype is not dtype else rows.extend(own, count)
            if extended is None:
                if rows is not None:
                    spans.clear()
                rows = None  # full buffers are freed one by one, as larger ones take their place
                rows = CachedRows.find(own, dtype, count) if len(own) == len(layers) else None
                if rows is None:
                    return None
                spans[layers] = rows
                extended = rows.extend(own, count)
            if extended is None:
                return None
            found.append(extended)
        structs = np.empty((len(layers), len(found)), ARGUMENTS)
        for place, (extended, (_, count, mask)) in enumerate(zip(found, self._sequences, strict=True)):
            call = self._call_of_all(module, heads, head, extended, count, mask)
            visible = mask_place(mask, self._batch, count, extended.rows[0].length)
            if call is None or visible is None:
                return None
            own = structs[:, place]
            own[:] = call
            own["length"] = extended.rows[0].length
            if mask is not None:
                own["mask"], own["mask_batch_step"], own["mask_step"] = visible
        return CallsOfAll(found, self._together, structs) if found else None

    def _call_of_all(
        self, module: Any, heads: int, head: int, extended: ExtendedRows, count: int, mask: Tensor | None
    ) -> Arguments | None:
        """Return structs [L] of one sequence without length and mask; None if `attention.cpp` would not compute it."""
        causal, cached = mask is None and count > 1, extended.cached
        key = (self._batch, count, mask is None, heads, head, *attention_settings(module))
        call = None if causal else cached.calls.get(key)  # whether causal rows are computed depends on the length, too
        if call is None:
            common = self._arguments(module, heads, head, extended.rows[0], count, None, masked=mask is not None)
            if common is None:
                return None
            call = np.empty(len(cached.places), ARGUMENTS)
            call[:] = np.frombuffer(bytes(common), ARGUMENTS)
            call["causal"] = causal
            for name in PLACES:
                call[name] = cached.places[name]
            cached.calls[key] = call  # at last: an interrupt or another thread must not leave half of it
        return call

    def _known_common(
        self, module: Any, heads: int, head: int, dtype: torch.dtype, each: Sequence[FirstRows]
    ) -> tuple[Any, ...]:
        key = (*self._shared, heads, head, *attention_settings(module), dtype)
        known: tuple[Any, ...] | None = self._known.get(key)
        if known is None:
            known = self._known[key] = self._common(module, heads, head, each)
        return known

    def _common(self, module: Any, heads: int, head: int, each: Sequence[FirstRows]) -> tuple[Any, ...]:
        """Return the forms and arguments that the sequences have alone; () if `attention.cpp` would not compute one."""
        calls = list[AttentionArguments]()
        for rows, (_, count, mask) in zip(each, self._sequences, strict=True):
            call = self._arguments(module, heads, head, rows, count, mask, masked=mask is not None)
            if call is None:
                return ()
            calls.append(call)
        return [_form(rows) for rows in each], (AttentionArguments * len(calls))(*calls)

    def _arguments(
        self, module: Any, heads: int, head: int, rows: FirstRows, count: int, mask: Tensor | None, *, masked: bool
    ) -> AttentionArguments | None:
        """Return the arguments that a sequence has alone; None if `attention.cpp` would not compute it."""
        own, (keys, values) = (self._batch, heads, count, head), rows
        if keys.shape[0] != self._batch or not self._attend.serves(module, own, keys, masked=masked):
            return None
        return self._attend.arguments(own, keys, values, mask, module.scaling)


def _form(rows: FirstRows) -> tuple[Any, ...]:
    """Return what the arguments of a sequence's attention depend on besides addresses and the room in its buffers."""
    keys, values = rows.buffers
    (batch, heads, _, size), (own_batch, own_heads, _, own_size) = keys.shape, values.shape
    return rows.length, batch, heads, size, own_batch, own_heads, own_size, values.dtype
