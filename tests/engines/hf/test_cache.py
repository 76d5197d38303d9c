"""The cache that is written in place: growth, rollback, what others may do with it."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import DynamicCache

from interrupts import interrupted
from models import tiny_model
from passes import IDS, greedy_texts, opened, plain_text
from speculant.engines.hf.cache import crop_cache, keep_rows, usable_cache
from speculant.engines.hf.caches.in_place_layer import MIN_ROWS, InPlaceLayer
from speculant.engines.hf.engine import HFEngine


def states(rows: int, start: int = 0) -> torch.Tensor:
    """Return [1, 2, rows, 3] whose numbers name their row."""
    return torch.arange(start, start + rows).float()[None, None, :, None].expand(1, 2, rows, 3)


def filled(rows: int) -> DynamicCache:
    cache = usable_cache(None)
    cache.update(states(rows), -states(rows), 0)
    return cache


def numbers(cache: DynamicCache) -> list[int]:
    assert torch.equal(cache.layers[0].keys, -cache.layers[0].values)
    found: list[int] = cache.layers[0].keys[0, 1, :, 2].int().tolist()
    return found


def test_rows_are_written_in_place() -> None:
    """Guards against copying the cache in every round."""
    cache = filled(5)
    place = cache.layers[0].keys.data_ptr()
    for start in range(5, 100, 5):
        cache.update(states(5, start), -states(5, start), 0)
        assert cache.layers[0].keys.data_ptr() == place
    assert numbers(cache) == list(range(100))


def test_a_full_cache_doubles() -> None:
    """Guards growth: the rows survive it, and it is rare."""
    cache, places = filled(1), set()
    for start in range(1, 5 * MIN_ROWS):
        cache.update(states(1, start), -states(1, start), 0)
        places.add(cache.layers[0].keys.data_ptr())
    assert numbers(cache) == list(range(5 * MIN_ROWS))
    assert len(places) <= 4


@pytest.mark.parametrize("rows", [0, 5])
def test_keys_and_values_grow_together(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards a full device: where only the values do not fit, nothing was added, in the first fill too."""
    layer, more = InPlaceLayer(), MIN_ROWS + 1
    if rows:
        layer.update(states(rows), -states(rows))
    empty, calls = torch.Tensor.new_empty, list[int]()

    def full(tensor: torch.Tensor, *args: object, **options: object) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("no room")
        return empty(tensor, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "new_empty", full)
        with pytest.raises(torch.OutOfMemoryError):
            layer.update(states(more, rows), -states(more, rows))
    assert layer.get_seq_length() == rows
    layer.keep(rows, [])
    layer.update(states(more, rows), -states(more, rows))
    assert torch.equal(layer.keys, -layer.values)
    assert layer.keys[0, 1, :, 2].tolist() == list(range(rows + more))


@pytest.mark.parametrize("rows", [0, 5])
def test_an_interrupted_update_adds_all_or_nothing(rows: int) -> None:
    """Guards Ctrl-C at every line of an update and of what keeps rows."""
    line, reached = 1, True
    while reached:
        layer = InPlaceLayer()
        if rows:
            layer.update(states(rows), -states(rows))
        reached = interrupted(lambda layer=layer: layer.update(states(3, rows), -states(3, rows)), line)
        assert layer.get_seq_length() in (rows, rows + 3)
        layer.keep(rows, [])
        layer.update(states(3, rows), -states(3, rows))
        assert torch.equal(layer.keys, -layer.values)
        assert layer.get_seq_length() == rows + 3
        line += 1
    assert line > 5


def test_keeping_all_rows_leaves_them_as_they_are() -> None:
    """Guards plain rounds, which drop nothing: they make no new views of each layer of each sequence."""
    layer = filled(5).layers[0]
    held = layer.held
    layer.keep(5, [])
    assert layer.held is held
    layer.keep(4, [])
    assert layer.held is not held
    assert layer.get_seq_length() == 4


def test_rows_that_the_caller_writes() -> None:
    """Guards compiled code: it gets the very rows behind those held, and none where there is no room or no buffer."""
    layer = filled(5).layers[0]
    keys, values = layer.extend(2)
    assert layer.get_seq_length() == 5  # they are not in use yet
    layer.keys, layer.values = keys, values
    keys[..., 5:, :], values[..., 5:, :] = states(2, 5), -states(2, 5)
    layer.update(states(1, 7), -states(1, 7))
    assert layer.keys[0, 1, :, 2].tolist() == (-layer.values)[0, 1, :, 2].tolist() == list(range(8))
    assert layer.extend(MIN_ROWS - 7) is None
    assert layer.keys.shape[-2] == 8
    layer.keys = layer.keys.clone()
    assert layer.extend(1) is None
    assert InPlaceLayer().extend(1) is None


def test_rows_extended_without_making_tensors() -> None:
    """Guards rounds of a batch: the rows are those of `extend`, and none where those held are no longer its own."""
    layer = filled(5).layers[0]
    layer.hold(layer.extend_unread(1))
    held = layer.extend_unread(2)
    keys, values = layer.extend(2)
    assert layer.get_seq_length() == 6
    assert held.length == 8
    assert [each.data_ptr() for each in held] == [keys.data_ptr(), values.data_ptr()]
    assert [each.shape for each in held] == [keys.shape, values.shape]
    layer.keep(4, [1])
    assert layer.get_seq_length() == 5
    assert layer.keys[0, 1, :4, 2].tolist() == list(range(4))
    assert layer.extend_unread(MIN_ROWS - 4) is None
    with torch.inference_mode():
        assert layer.extend_unread(1) is None
    layer.keys = layer.keys.clone()
    assert layer.extend_unread(1) is None
    assert InPlaceLayer().extend_unread(1) is None


@pytest.mark.parametrize(("rows", "expected"), [([], []), ([0, 1], [4, 5]), ([1, 3], [5, 7]), ([2], [6])])
def test_rows_of_a_path_are_kept(rows: list[int], expected: list[int]) -> None:
    """Guards the move inside the buffer, and that the next rows are written behind it."""
    cache = filled(9)
    place = cache.layers[0].keys.data_ptr()
    keep_rows(cache, 4, rows)
    assert numbers(cache) == [0, 1, 2, 3, *expected]
    cache.update(states(1, 50), -states(1, 50), 0)
    assert numbers(cache) == [0, 1, 2, 3, *expected, 50]
    assert cache.layers[0].keys.data_ptr() == place


def test_a_given_cache_is_adopted() -> None:
    """Guards a user's cache: it is the very object, with the same rows, and is not written into elsewhere."""
    given = DynamicCache()
    given.update(states(3), -states(3), 0)
    theirs = given.layers[0].keys
    cache = usable_cache(given)
    assert cache is given
    cache.update(states(2, 3), -states(2, 3), 0)
    assert numbers(cache) == [0, 1, 2, 3, 4]
    assert theirs.shape[-2] == 3


def test_what_others_put_in_place_of_the_views_is_taken_over() -> None:
    """Guards transformers' own operations on the cache: cropping, reordering, copies."""
    cache = filled(6)
    layer = cache.layers[0]
    layer.keys, layer.values = layer.keys[..., :4, :], layer.values[..., :4, :]
    cache.update(states(1, 4), -states(1, 4), 0)
    cache.reorder_cache(torch.tensor([0]))
    cache.update(states(1, 5), -states(1, 5), 0)
    twin = copy.deepcopy(cache)
    cache.update(states(1, 6), -states(1, 6), 0)
    twin.update(states(1, 60), -states(1, 60), 0)
    assert numbers(cache) == [0, 1, 2, 3, 4, 5, 6]
    assert numbers(twin) == [0, 1, 2, 3, 4, 5, 60]
    cache.reset()
    cache.update(states(2), -states(2), 0)
    assert numbers(cache) == [0, 1]


def test_rows_written_in_inference_mode_can_be_continued_outside() -> None:
    """Guards torch's rule that such tensors are not written later."""
    with torch.inference_mode():
        cache = filled(3)
    cache.update(states(1, 3), -states(1, 3), 0)
    assert numbers(cache) == [0, 1, 2, 3]


def test_gradients_flow_through_the_cache() -> None:
    """Guards training on a returned cache, where nothing may be written in place."""
    cache, new = filled(3), states(1, 3).clone().requires_grad_()
    cache.update(new, -new, 0)
    cache.update(states(1, 4), -states(1, 4), 0)
    cache.layers[0].keys.sum().backward()
    assert new.grad is not None


def test_a_cropped_cache_serves_another_prompt() -> None:
    """Guards the chat's way of going back to what two prompts share."""
    model = tiny_model("llama")
    engine = HFEngine(model)
    first = opened(engine, IDS)
    crop_cache(first.cache, 5)
    assert all(type(layer) is InPlaceLayer for layer in first.cache.layers)
    prompt = torch.tensor([[*IDS[0].tolist(), 30, 31]])
    expected = plain_text(model, prompt, 12)
    assert greedy_texts(engine, [prompt], [expected], caches=[first.cache]) == [expected]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_room_for_drafts_is_that_after_the_prompt(name: str) -> None:
    """Guards draft models, which read a prompt late: how deep a draft may be is known before."""
    cache = HFEngine(tiny_model(name)).open(IDS)
    before = cache.depth, cache.room
    cache.prefill(2)
    assert (cache.depth, cache.room) == before
    cache.prefill()
    assert (cache.depth, cache.room) == before
    assert cache.depth == tiny_model(name).config.max_position_embeddings - 1 - IDS.shape[1]
