"""Passes that call a model's parts themselves: the bits of transformers' forward, or that forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fused_layers import IDS, model_of
from interrupts import interrupted
from pairwise import in_turn
from speculant.core.engine import Pass, RequestedOutputs
from speculant.core.tree import DraftTree
from speculant.engines.hf.acceleration import LayerPass
from speculant.engines.hf.cache import cut_rows, usable_cache
from speculant.engines.hf.cpu import direct_passes
from speculant.engines.hf.cpu.accelerate import CpuAcceleration, prepare_model
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.views.layer_selection import LayerSelection

pytestmark = pytest.mark.usefixtures("compiled")
BEFORE = 4  # cached rows
TREE = DraftTree.from_paths([[9, 3], [14]])


@torch.inference_mode()
def logits_of(
    model: Any,
    prepared: CpuAcceleration | None,
    rows: int = 8,
    *,
    first: int = BEFORE,
    batch: int = 1,
    kept: int | Tensor = 0,
    ids: Tensor | None = None,
) -> tuple[Tensor, bool]:
    """Return the logits of a tree's rows behind the cached ones, and whether the pass was our own.

    Args:
        model: the model.
        prepared: the prepared model; None for the model itself.
        rows: number of rows.
        first: position of the first.
        batch: number of texts.
        kept: as in `LayerPass`.
        ids: the tokens, if they matter.
    """
    cache = usable_cache(None)
    model(IDS[:batch, :BEFORE], past_key_values=cache)
    mask = torch.ones(1, 1, rows, BEFORE + rows, dtype=torch.bool).tril(BEFORE)
    mask[..., BEFORE + 1 : BEFORE + 3] = torch.eye(rows, dtype=torch.bool)[:, 1:3]  # two siblings without children
    ids = IDS[:batch].repeat(1, 20)[:, :rows].contiguous() if ids is None else ids
    positions = (first + torch.arange(rows))[None].expand(batch, -1).contiguous()
    given = mask if rows > 1 else None
    direct = (
        None if prepared is None else prepared.run_layers(model, LayerPass(ids, positions, given, cache, kept=kept))
    )
    logits, own = None if direct is None else direct.logits, direct is not None
    if logits is None:
        run = model if prepared is None else prepared.model_for(model, rows)
        logits = run(
            input_ids=ids, position_ids=positions, attention_mask=given, past_key_values=cache, logits_to_keep=kept
        ).logits
    assert cache.get_seq_length() == BEFORE + rows
    return logits, own


def by_transformers(model: Any, prepared: CpuAcceleration, *given: Any, **options: Any) -> Tensor:
    """Return the logits of transformers' forward around the same layers, which a hook requires."""
    handle = model.model.register_forward_hook(lambda *_: None)
    logits, own = logits_of(model, prepared, *given, **options)
    handle.remove()
    assert not own
    return logits


@pytest.mark.parametrize(
    ("name", "rows", "dtype"),
    in_turn(
        ["llama", "mistral", "qwen2", "qwen3"],
        [(1, torch.float32), (8, torch.float32), (64, torch.float32), (8, torch.bfloat16)],
        whole=2,
    ),
)
def test_logits_are_those_of_transformers(name: str, rows: int, dtype: torch.dtype) -> None:
    """Guards embeddings, positions, masks, norm and head: the same bits."""
    model = model_of(name).to(dtype)
    prepared = prepare_model(model, True)
    found, own = logits_of(model, prepared, rows)
    assert own
    assert torch.equal(found, by_transformers(model, prepared, rows))
    tolerance = 1e-4 if dtype is torch.float32 else 0.1
    torch.testing.assert_close(found, logits_of(model, None, rows)[0], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kept", [0, 1, 3, torch.tensor([1, 4])])
def test_requested_rows_only(kept: int | Tensor) -> None:
    """Guards the rows whose logits are requested: the last ones, or those of an index, of two texts."""
    model = model_of("llama")
    prepared = prepare_model(model, True)
    found, own = logits_of(model, prepared, batch=2, kept=kept)
    assert own
    assert torch.equal(found, by_transformers(model, prepared, batch=2, kept=kept))


def test_positions_without_kept_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards long texts, whose rotary embeddings are computed by transformers."""
    monkeypatch.setattr(direct_passes, "MAX_POSITIONS", 16)
    model = model_of("llama")
    prepared = prepare_model(model, True)
    for first, expected in ((8, True), (9, False)):
        found, own = logits_of(model, prepared, first=first)
        assert own is expected
        assert torch.equal(found, by_transformers(model, prepared, first=first))


def test_unknown_tokens_are_refused_by_transformers() -> None:
    """Guards the memory behind the embeddings."""
    model = model_of("llama")
    prepared = prepare_model(model, True)
    for token in (-1, model.config.vocab_size):
        with pytest.raises(IndexError):
            logits_of(model, prepared, 1, ids=torch.tensor([[token]]))


@pytest.mark.parametrize(("window", "expected"), [(4, False), (5, True)])
def test_a_window_needs_a_mask(window: int, expected: bool) -> None:
    """Guards single rows of Mistral, for which transformers creates a mask once the text exceeds the window."""
    model = model_of("mistral")
    model.config.sliding_window = window
    prepared = prepare_model(model, True)
    found, own = logits_of(model, prepared, 1)
    assert own is expected
    assert torch.equal(found, by_transformers(model, prepared, 1))


@pytest.mark.parametrize("taps", [(0, 2), (2,), (1, 0)])
def test_outputs_of_layers(taps: tuple[int, ...]) -> None:
    """Guards heads, which read the outputs of layers: those that a view of the layers reads."""
    model, found = model_of("llama"), list[Pass]()
    engine = HFEngine(model, acceleration=prepare_model(model, True))
    for direct in (True, False):
        cache = engine.open(IDS[:1])
        cache.prefill()
        handle = None if direct else model.model.register_forward_hook(lambda *_: None)
        [output] = engine.forward([(cache, 5, TREE)], RequestedOutputs(hidden_layers=taps))
        found.append(output)
        if handle is not None:
            handle.remove()
    (one, other) = found
    assert one.hidden is not None
    assert other.hidden is not None
    assert one.hidden.shape == (4, len(taps), model.config.hidden_size)
    assert torch.equal(one.hidden, other.hidden)
    assert torch.equal(one.logits, other.logits)


@torch.inference_mode()
@pytest.mark.parametrize("layers", [1, 2])
def test_layers_in_two_parts(layers: int) -> None:
    """Guards passes that continue behind an exit: the bits of a whole pass, and the same rows in the cache."""
    model = model_of("llama")
    prepared, caches = prepare_model(model, True), [usable_cache(None) for _ in range(2)]
    ids, positions = IDS[:1, 4:5].contiguous(), torch.tensor([[4]])
    for cache in caches:
        model(IDS[:1, :4], past_key_values=cache)
    whole = prepared.run_layers(model, LayerPass(ids, positions, None, caches[0], taps=(layers - 1,)))
    first = prepared.run_layers(model, LayerPass(ids, positions, None, caches[1], range(layers), kept=None))
    assert whole is not None
    assert first is not None
    assert first.logits is None
    states = first.states[layers - 1]
    assert torch.equal(states, whole.states[layers - 1])
    rest = prepared.run_layers(model, LayerPass(states, positions, None, caches[1], range(layers, 3)))
    assert rest is not None
    assert rest.logits is not None
    assert whole.logits is not None
    assert torch.equal(rest.logits, whole.logits)
    for one, other in zip(caches[0].layers, caches[1].layers, strict=True):
        assert torch.equal(one.keys, other.keys)
        assert torch.equal(one.values, other.values)


def test_texts_of_a_batch_need_no_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the cost of a shared pass: it gives each text the logits that it gets alone."""
    model = model_of("llama")
    engine = HFEngine(model, acceleration=prepare_model(model, True))
    views, view = list[int](), LayerSelection.view

    def note(selection: LayerSelection, *given: Any) -> Any:
        views.append(1)
        return view(selection, *given)

    monkeypatch.setattr(LayerSelection, "view", note)
    found = list[list[Tensor]]()
    for together in (True, False):
        caches = [engine.open(IDS[:1, :length]) for length in (4, 7)]
        for cache in caches:
            cache.prefill()
        views.clear()
        requests = [(cache, 5, TREE) for cache in caches]
        parts = [requests] if together else [[request] for request in requests]
        found.append([each.logits for part in parts for each in engine.forward(part)])
        assert not views
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def _scale_norm(model: Any) -> None:
    model.model.norm.weight = nn.Parameter(2 * model.model.norm.weight)


def _move_embeddings(model: Any) -> None:
    model.model.embed_tokens.weight.data = 1.5 * model.model.embed_tokens.weight.data


def _replace_embeddings(model: Any) -> None:
    model.model.embed_tokens = nn.Sequential(model.model.embed_tokens, nn.ReLU())


def _hook_embeddings(model: Any) -> None:
    model.model.embed_tokens.register_forward_hook(lambda _, __, output: 2 * output)


def _hook_norm(model: Any) -> None:
    model.model.norm.register_forward_hook(lambda _, __, output: output / 2)


def _patch_norm(model: Any) -> None:
    model.model.norm.forward = lambda states: 3 * states


def _hook_head(model: Any) -> None:
    model.lm_head.register_forward_hook(lambda _, __, output: output - 1)


def _turn_faster(model: Any) -> None:
    model.model.rotary_emb.inv_freq.mul_(2)


def _replace_frequencies(model: Any) -> None:
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq * 3


def _patch_rotary(model: Any) -> None:
    own = model.model.rotary_emb.forward
    model.model.rotary_emb.forward = lambda x, position_ids: own(x, position_ids + 1)


def _patch_model(model: Any) -> None:
    own = model.model.forward

    def shifted(*, position_ids: Tensor | None = None, **options: Any) -> Any:
        return own(position_ids=None if position_ids is None else position_ids + 2, **options)

    model.model.forward = shifted


@pytest.mark.parametrize(
    "change",
    [
        _scale_norm,
        _move_embeddings,
        _replace_embeddings,
        _hook_embeddings,
        _hook_norm,
        _patch_norm,
        _hook_head,
        _turn_faster,
        _replace_frequencies,
        _patch_rotary,
        _patch_model,
    ],
)
def test_changes_take_effect_at_once(change: Callable[[Any], None]) -> None:
    """Guards models that are changed between two passes: the logits of the changed model."""
    model = model_of("llama")
    prepared = prepare_model(model, True)
    before, _ = logits_of(model, prepared)
    with torch.no_grad():
        change(model)
    found, _ = logits_of(model, prepared)
    assert not torch.allclose(found, before)
    torch.testing.assert_close(found, logits_of(model, None)[0], atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_a_reduced_number_of_layers_takes_effect() -> None:
    """Guards early exits by the config, which transformers reads in every pass."""
    model = model_of("llama")
    prepared = prepare_model(model, True)
    model.config.num_hidden_layers -= 1
    found, own = logits_of(model, prepared, 1)
    assert not own
    torch.testing.assert_close(found, logits_of(model, None, 1)[0], atol=1e-4, rtol=1e-4)


def test_hooks_of_the_model_are_called() -> None:
    """Guards hooks on the model itself, which only transformers' forward calls."""
    model, seen = model_of("llama"), list[int]()
    prepared = prepare_model(model, True)
    model.register_forward_hook(lambda *_: seen.append(1))
    logits_of(model, prepared)
    assert len(seen) == 2


@torch.inference_mode()
def test_an_interrupt_at_any_line_leaves_no_half_of_anything() -> None:
    """Guards Ctrl-C in the first pass over a cache, in which everything is looked up: the next pass is right."""
    model = model_of("llama", num_hidden_layers=2)
    prepared, expected = prepare_model(model, True), logits_of(model, None, 1)[0]
    ids, positions, line, reached = IDS[:1, :1].contiguous(), torch.tensor([[BEFORE]]), 1, True
    while reached:
        cache = usable_cache(None)
        model(IDS[:1, :BEFORE], past_key_values=cache)
        asked = LayerPass(ids, positions, None, cache)
        reached = interrupted(lambda asked=asked: prepared.run_layers(model, asked), line)
        cut_rows(cache, BEFORE, 0)
        found = prepared.run_layers(model, asked)
        assert found is not None
        assert found.logits is not None
        torch.testing.assert_close(found.logits, expected, atol=1e-4, rtol=1e-4)
        line += 1
    assert line > 100
