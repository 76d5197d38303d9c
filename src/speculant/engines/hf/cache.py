"""The cache of a sequence: transformers' own DynamicCache, with layers that can be rolled back to any path of rows.

Keys and values are written in place (`in_place_layer.py`), states are recorded (`states/layers.py`). Users and
`model.generate` can use the cache like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from speculant.core.errors import UnsupportedError
from speculant.core.tree import Bool
from speculant.engines.hf.caches.in_place_layer import InPlaceLayer, SourceCacheLayer
from speculant.engines.hf.caches.indexed_layer import DynamicIndexedLayer, IndexedLayer
from speculant.engines.hf.states.layers import HybridStateLayer, LinearAttentionLayer, Snapshot, StateLayer
from speculant.engines.hf.states.mixers import Mixers


def holds_text(cache: Any) -> bool:
    """Return whether a transformers cache has read anything; a cache of states alone has no length."""
    try:
        return bool(cache.get_seq_length())
    except (ValueError, AttributeError):
        return any(any(layer.has_previous_state.values()) for layer in cache.layers)


def holds_sources(cache: Any, layers: Collection[int]) -> bool:
    """Return whether any of these cross-attention layers has rows in a cache."""
    held = [] if cache is None else cache.layers
    return any(layer < len(held) and held[layer].is_initialized and held[layer].keys.numel() for layer in layers)


def usable_cache(
    cache: Any, config: Any = None, kind: type[DynamicCache] = DynamicCache, sources: Collection[int] = ()
) -> DynamicCache:
    """Return a cache of in-place layers, of which any subset of rows can be kept.

    A given DynamicCache is returned itself, with its layers replaced by equivalent ones. For models with windows,
    `generate` passes sliding layers, which drop rows that a rollback needs, so while they are empty the whole cache is
    replaced. The mask enforces the window instead.

    Args:
        cache: the given cache; None for a new one.
        config: text config of a model with several kinds of layers; None for keys and values alone.
        kind: the cache class for the model's states; an empty DynamicCache is replaced by one.
        sources: the cross-attention layers, whose rows do not belong to the text.

    Raises:
        UnsupportedError: the cache is not empty and cannot be rolled back, or is of another kind.
    """
    if cache is None:
        cache = DynamicCache() if config is None else DynamicCache(config=config)
    if type(cache) not in (DynamicCache, kind) or getattr(cache, "offloading", False):
        raise UnsupportedError(
            f"a {type(cache).__name__} cannot keep the accepted rows of a tree; leave out `cache_implementation` "
            "and `past_key_values`, or pass a DynamicCache(). If the model's generation config asks for it, give "
            "cache_implementation=None."
        )
    if config is not None:
        return _of_kinds(cache, config, kind)
    kinds = {type(layer) for layer in cache.layers} - {DynamicLayer, InPlaceLayer}
    if kinds and holds_text(cache):
        raise UnsupportedError(
            f"the cache holds layers that cannot be rolled back ({', '.join(sorted(kind.__name__ for kind in kinds))})."
            " Start with `DynamicCache()` made without a config, which keeps every row."
        )
    if kinds:
        cache = DynamicCache()
    count = max(len(cache.layers), max(sources, default=-1) + 1)
    held = [*cache.layers, *(InPlaceLayer() for _ in range(count - len(cache.layers)))]
    kinds_of = dict.fromkeys(sources, SourceCacheLayer)
    cache.layers = [kinds_of.get(place, InPlaceLayer).adopt(layer) for place, layer in enumerate(held)]
    cache.layer_class_to_replicate = InPlaceLayer
    return cache


def _of_kinds(cache: DynamicCache, config: Any, kind: type[DynamicCache]) -> DynamicCache:
    """Return a cache with a config's kinds of layers: the given one, or a new one if that is empty."""
    if not cache.layers:
        cache = DynamicCache(config=config)
    if type(cache) is not kind:
        if cached_length(cache):
            raise UnsupportedError("this cache does not hold the states of its text, which the model keeps elsewhere.")
        given, cache = cache.layers, kind()
        cache.layers = given
    held, attends = cached_length(cache), any(isinstance(layer, DynamicLayer) for layer in cache.layers)
    layers: list[Any] = []
    for layer in cache.layers:
        if isinstance(layer, LinearAttentionLayer):
            kind = HybridStateLayer if isinstance(layer, DynamicLayer) else StateLayer
            own = kind.holding(layer, held)
            own.note_others(held if attends else None)
            layers.append(own)
        elif isinstance(layer, DynamicIndexedLayer | IndexedLayer):
            layers.append(IndexedLayer.adopt(layer))
        elif isinstance(layer, DynamicLayer):
            if held and type(layer) not in (DynamicLayer, InPlaceLayer):
                raise UnsupportedError(f"the cache holds layers that cannot be rolled back ({type(layer).__name__}).")
            layers.append(InPlaceLayer.adopt(layer) if held else InPlaceLayer())
        else:
            layers.append(layer)
    cache.layers = layers
    return cache


def cached_length(cache: DynamicCache) -> int:
    """Return the number of rows in a cache, including drafted ones.

    Raises:
        UnsupportedError: it only has states from elsewhere, whose number of tokens is unknown.
    """
    if any(isinstance(layer, DynamicLayer) for layer in cache.layers) or not cache.layers:
        return int(cache.get_seq_length())
    layer = cache.layers[rows_layer(cache)]
    if isinstance(layer, StateLayer):
        return layer.rows
    if any(layer.has_previous_state.values()):
        raise UnsupportedError(
            "a cache of recurrent states alone does not say how many tokens it has read; continue from the `cache` "
            "of a result instead."
        )
    return 0


def rows_layer(cache: DynamicCache) -> int:
    """Return the index of the layer that tells a cache's number of rows: the first with attention, or with a state."""
    for kind in (DynamicLayer, LinearAttentionLayer):
        found = next((index for index, layer in enumerate(cache.layers) if isinstance(layer, kind)), None)
        if found is not None:
            return found
    return 0


def state_layers(cache: DynamicCache) -> list[StateLayer]:
    """Return the layers of a cache with states."""
    return [layer for layer in cache.layers if isinstance(layer, StateLayer)]


def begin_own_pass(cache: DynamicCache, tokens: int, mixers: Mixers | None) -> None:
    """Prepare layers with states for a pass of the model's own functions over `tokens` tokens."""
    for layer in state_layers(cache):
        layer.begin_own(tokens, in_place=tokens == 1 and mixers is not None and mixers.in_place)


def keep_read(cache: DynamicCache) -> None:
    """Commit everything that layers with states have read, if it is a chain, as for prompts."""
    _take((layer, layer.after(range(layer.uncommitted))) for layer in state_layers(cache))


def reusable_length(cache: DynamicCache, length: int) -> int:
    """Return how many of the first `length` rows can be kept without the rest: up to the last known state."""
    return min((layer.mark_before(length) for layer in state_layers(cache)), default=length)


def copy_prefix(cache: DynamicCache, length: int, *, room: int) -> DynamicCache:
    """Return a cache with copies of the first reusable rows, and a capacity of `room` rows."""
    copy: DynamicCache = type(cache)()
    length = reusable_length(cache, length)
    copy.layer_class_to_replicate = cache.layer_class_to_replicate
    for layer in cache.layers:
        if isinstance(layer, StateLayer):
            copy.layers.append(layer.copy_prefix(length, room))
        else:
            copy.layers.append(layer.prefix(layer, length, room) if isinstance(layer, InPlaceLayer) else layer)
    return copy


def held_bytes(cache: DynamicCache) -> int:
    """Return the bytes of a cache from `usable_cache`, including unused rows."""
    return sum(getattr(layer, "nbytes", 0) for layer in cache.layers)


def compact_cache(cache: DynamicCache) -> DynamicCache:
    """Return the cache itself, or a copy in fitting buffers if more than a quarter of its own is unused."""
    rows = [layer for layer in cache.layers if isinstance(layer, InPlaceLayer) and layer.is_initialized]
    used = sum(layer.keys.nbytes + layer.values.nbytes for layer in rows)
    if 4 * used >= 3 * sum(layer.rows_nbytes for layer in rows):
        return cache
    length = cached_length(cache)
    return copy_prefix(cache, length, room=length)


def crop_cache(cache: DynamicCache, length: int) -> int:
    """Keep the first reusable rows, for a prompt that shares only those; return their number.

    The cache's own `crop` counts differently in different releases of transformers.
    """
    kept = reusable_length(cache, length)
    for layer in state_layers(cache):
        layer.return_to(kept)
    _keep_in_place(cache, kept, [])
    return kept


def keep_rows(cache: DynamicCache, start: int, rows: list[int]) -> None:
    """Keep the first `start` rows of every layer, followed by those at `start` + each of the ascending `rows`.

    In layers with states, `start` rows are committed, and `rows` is a path after them.
    """
    _take((layer, layer.after(rows)) for layer in state_layers(cache))
    _keep_in_place(cache, start, rows)


def cut_rows(cache: DynamicCache, start: int, rows: int) -> None:
    """Keep the committed `start` rows and the first `rows` after them, dropping the rest of a failed pass."""
    for layer in state_layers(cache):
        layer.cut_rows(rows)
    _keep_in_place(cache, start + rows, [])


def _take(states: Iterable[tuple[StateLayer, Snapshot]]) -> None:
    """Set each layer's state, after all of them have been computed."""
    for layer, snapshot in list(states):
        layer.restore(snapshot)


def rows_to_move(rows: list[int]) -> tuple[int, list[int]]:
    """Return how many of the kept rows are already in place, and the others, counted from there."""
    still = next((place for place, row in enumerate(rows) if place != row), len(rows))
    return still, [row - still for row in rows[still:]]


def _keep_in_place(cache: DynamicCache, start: int, rows: list[int]) -> None:
    still, found = rows_to_move(rows)
    moved: list[int] | Tensor = found
    for layer in cache.layers:
        if isinstance(layer, InPlaceLayer) and layer.is_initialized:
            if len(moved):
                moved = torch.as_tensor(moved, device=layer.keys.device)  # one copy for all layers of a device
            layer.keep(start + still, moved)


def layer_rows(cache: DynamicCache, layer: int, length: int, *, seen: Bool | None) -> tuple[Tensor, Tensor]:
    """Return the keys and values [H, T, d] of a cache's first `length` tokens in one layer, without padding.

    Args:
        cache: cache of one sequence.
        layer: counted from 0; -1 is the last.
        length: length of the committed text.
        seen: Bool[T'], False at the prompt's padding; None without padding.

    Raises:
        UnsupportedError: the layer has no rows of its own, or not for all tokens.
    """
    layers = cache.layers
    held: Any = layers[layer] if -len(layers) <= layer < len(layers) else None
    if not _holds_text_rows(held, length):
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


def _holds_text_rows(layer: Any, length: int) -> bool:
    """Return whether a layer has its own keys and values for this many tokens."""
    own = layer is not None and not isinstance(layer, SourceCacheLayer) and getattr(layer, "is_initialized", False)
    return own and layer.keys.shape[-2] >= length
