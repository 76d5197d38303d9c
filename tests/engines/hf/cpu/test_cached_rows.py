"""Rows of caches for compiled code: moved like PyTorch moves them, and looked up anew once they lie elsewhere."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from fused_layers import IDS, model_of
from speculant.engines.hf.cache import keep_rows, usable_cache
from speculant.engines.hf.caches import in_place_layer
from speculant.engines.hf.caches.in_place_layer import InPlaceLayer
from speculant.engines.hf.cpu.accelerate import CpuAcceleration, prepare_model
from speculant.engines.hf.cpu.cached_rows import CachedRows

pytestmark = pytest.mark.usefixtures("compiled")


def read(model: object, prepared: CpuAcceleration, cache: DynamicCache, rows: int) -> Tensor:
    """Return the last hidden state of a pass over the first rows of IDS."""
    run = prepared.model_for(model, rows)
    hidden: Tensor = run.model(IDS[:1, :rows], past_key_values=cache).last_hidden_state
    return hidden


def filled(model: object, prepared: CpuAcceleration) -> DynamicCache:
    """Return a cache of five committed rows and eight drafted ones."""
    cache = usable_cache(None)
    read(model, prepared, cache, 5)
    read(model, prepared, cache, 8)
    return cache


def contents(cache: DynamicCache) -> list[Tensor]:
    return [part.clone() for layer in cache.layers for part in (layer.keys, layer.values)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [[], [0], [0, 1, 2], [2], [0, 3, 4, 7]])
@torch.inference_mode()
def test_kept_rows_are_those_that_pytorch_keeps(rows: list[int], dtype: torch.dtype) -> None:
    """Guards the accepted path of a tree, in both dtypes; rows in place are not moved."""
    model = model_of("llama").to(dtype)
    prepared = prepare_model(model, True)
    caches = [filled(model, prepared), filled(model, prepared)]
    assert prepared.keep(caches[0], 5, rows)
    keep_rows(caches[1], 5, rows)
    assert all(map(torch.equal, *map(contents, caches)))
    assert torch.equal(*(read(model, prepared, cache, 3) for cache in caches))


def replace_views(cache: DynamicCache) -> None:
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys.clone(), layer.values.clone()


def replace_layers(cache: DynamicCache) -> None:
    cache.layers = [InPlaceLayer.prefix(layer, 13, 64) for layer in cache.layers]


def shorten_one(cache: DynamicCache) -> None:
    cache.layers[1].keep(12, [])


@pytest.mark.parametrize("change", [replace_views, replace_layers, shorten_one])
@torch.inference_mode()
def test_rows_elsewhere_are_not_moved(change: Callable[[DynamicCache], None]) -> None:
    """Guards caches that other code has changed since the last pass: `keep_rows` does its work, and passes go on."""
    model = model_of("llama")
    prepared = prepare_model(model, True)
    cache = filled(model, prepared)
    change(cache)
    before = contents(cache)
    assert not prepared.keep(cache, 5, [0, 3])
    assert all(map(torch.equal, contents(cache), before))
    keep_rows(cache, 5, [0, 3])
    other = filled(model, prepared)
    keep_rows(other, 5, [0, 3])
    assert torch.equal(read(model, prepared, cache, 4), read(model, prepared, other, 4))


@torch.inference_mode()
def test_rows_that_are_not_there_are_not_moved() -> None:
    """Guards the memory behind the rows of a cache that was cut meanwhile."""
    model = model_of("llama")
    prepared = prepare_model(model, True)
    cache = filled(model, prepared)
    for layer in cache.layers:
        layer.keep(7, [])
    assert not prepared.keep(cache, 5, [0, 2])
    assert prepared.keep(cache, 5, [1])
    assert not prepared.keep(cache, 7, [])
    assert [layer.get_seq_length() for layer in cache.layers] == [6] * 3


@torch.inference_mode()
def test_rows_are_appended_only_to_what_was_looked_up() -> None:
    """Guards a cache that changes during a pass, and full buffers, which are replaced before they are written to."""
    model = model_of("llama")
    cache = usable_cache(None)
    model.model(IDS[:1, :5], past_key_values=cache)
    rows = CachedRows.find(cache.layers, torch.float32, 4)
    assert rows is not None
    assert rows.extend(cache.layers, 1000) is None
    extended = rows.extend(cache.layers, 4)
    assert extended is not None
    cache.layers[2].keep(4, [])
    assert not extended.is_unchanged()
    assert CachedRows.find(cache.layers, torch.float32, 4) is None
    for layer in cache.layers:
        layer.keep(4, [])
    again = rows.extend(cache.layers, 4)
    assert again is not None
    assert again.is_unchanged()
    again.take()
    assert [layer.get_seq_length() for layer in cache.layers] == [8, 8, 8]


@torch.inference_mode()
def test_other_layers_are_left_to_the_model() -> None:
    """Guards caches with rows of another dtype or without any."""
    model = model_of("llama")
    cache = usable_cache(None)
    assert CachedRows.find([InPlaceLayer()], torch.float32, 1) is None
    model.model(IDS[:1, :5], past_key_values=cache)
    assert CachedRows.find(cache.layers, torch.bfloat16, 1) is None
    assert CachedRows.find([*cache.layers, InPlaceLayer()], torch.float32, 1) is None


@torch.inference_mode()
def test_a_model_of_another_dtype_gets_no_rows_of_the_old_one() -> None:
    """Guards memory and text where a model is converted and goes on with a cache."""
    model = model_of("llama")
    prepared = prepare_model(model, True)
    cache = filled(model, prepared)
    model.bfloat16()
    other = copy.deepcopy(cache)
    assert torch.equal(read(model, prepared, cache, 4), read(model, prepare_model(model, True), other, 4))


@torch.inference_mode()
def test_full_buffers_are_freed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the memory that a growing cache takes: old and new buffers of one layer at a time, not of all."""
    monkeypatch.setattr(in_place_layer, "MIN_ROWS", 1)
    model = model_of("llama")
    prepared, cache = prepare_model(model, True), usable_cache(None)
    read(model, prepared, cache, 5)
    alive, own = list[int](), InPlaceLayer.reserve
    for _ in range(3):
        old = [weakref.ref(layer._key_rows) for layer in cache.layers]
        alive.clear()

        def reserve(layer: InPlaceLayer, count: int, old: list[weakref.ref[Tensor]] = old) -> None:
            own(layer, count)
            alive.append(sum(each() is not None for each in old))

        monkeypatch.setattr(InPlaceLayer, "reserve", reserve)
        while not alive:
            read(model, prepared, cache, 4)
        assert alive[-1] <= 1
