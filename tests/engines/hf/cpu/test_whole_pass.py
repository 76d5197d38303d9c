"""A pass of a whole model in our own forward: the bits that transformers' forward returns, or transformers' forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fused_layers import IDS, model_of
from speculant.engines.hf.cache import usable_cache
from speculant.engines.hf.cpu import whole_pass
from speculant.engines.hf.cpu.accelerate import CpuAcceleration, prepare_model

pytestmark = pytest.mark.usefixtures("compiled")
BEFORE = 4  # cached rows


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that grows with every pass: whether it was our own."""
    seen, run = list[bool](), whole_pass.WholePass._run

    def note(whole: whole_pass.WholePass, *given: Any, **options: Any) -> Any:
        output = run(whole, *given, **options)
        seen.append(output is not None)
        return output

    monkeypatch.setattr(whole_pass.WholePass, "_run", note)
    return seen


@torch.inference_mode()
def logits_of(
    model: Any, prepared: CpuAcceleration | None, rows: int = 8, *, first: int = BEFORE, batch: int = 1, **options: Any
) -> Tensor:
    """Return the logits of a tree's rows behind the cached ones; the first is at position `first`."""
    cache = usable_cache(None)
    model(IDS[:batch, :BEFORE], past_key_values=cache)
    mask = torch.ones(1, 1, rows, BEFORE + rows, dtype=torch.bool).tril(BEFORE)
    mask[..., BEFORE + 1 : BEFORE + 3] = torch.eye(rows, dtype=torch.bool)[:, 1:3]  # two siblings without children
    run = model if prepared is None else prepared.model_for(model, rows)
    given: dict[str, Any] = {
        "input_ids": IDS[:batch].repeat(1, 20)[:, :rows].contiguous(),
        "position_ids": (first + torch.arange(rows))[None].expand(batch, -1).contiguous(),
        "attention_mask": mask if rows > 1 else None,
        "past_key_values": cache,
        "use_cache": True,
        "return_dict": True,
    }
    output = run(**(given | options))
    assert output.past_key_values is cache
    assert cache.get_seq_length() == BEFORE + rows
    logits: Tensor = output.logits
    return logits


def by_transformers(model: Any, prepared: CpuAcceleration, *given: Any, **options: Any) -> Tensor:
    """Return the logits of transformers' forward around the same layers, which a hook requires."""
    handle = model.model.register_forward_hook(lambda *_: None)
    logits = logits_of(model, prepared, *given, **options)
    handle.remove()
    return logits


@pytest.mark.parametrize(
    ("rows", "dtype"), [(1, torch.float32), (8, torch.float32), (64, torch.float32), (8, torch.bfloat16)]
)
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3"])
def test_logits_are_those_of_transformers(name: str, rows: int, dtype: torch.dtype, passes: list[bool]) -> None:
    """Guards embeddings, positions, masks, norm and head: the same bits."""
    model = model_of(name).to(dtype)
    prepared = prepare_model(model, True)
    found = logits_of(model, prepared, rows)
    assert passes == [True]
    assert torch.equal(found, by_transformers(model, prepared, rows))
    assert passes == [True, False]
    tolerance = 1e-4 if dtype is torch.float32 else 0.1
    torch.testing.assert_close(found, logits_of(model, None, rows), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kept", [0, 1, 3, torch.tensor([1, 4])])
def test_requested_rows_only(kept: int | Tensor, passes: list[bool]) -> None:
    """Guards `logits_to_keep`: the last rows, or those of an index."""
    model = model_of("llama")
    prepared = prepare_model(model, True)
    found = logits_of(model, prepared, batch=2, logits_to_keep=kept)
    assert passes == [True]
    assert torch.equal(found, by_transformers(model, prepared, batch=2, logits_to_keep=kept))


@pytest.mark.parametrize("options", [{"labels": torch.zeros(1, 8, dtype=torch.int64)}, {"return_dict": None}])
def test_other_options_are_left_to_transformers(options: dict[str, Any], passes: list[bool]) -> None:
    """Guards everything that our own forward does not do."""
    model = model_of("llama")
    prepared = prepare_model(model, True)
    assert torch.equal(logits_of(model, prepared, **options), by_transformers(model, prepared))
    assert not any(passes)


def test_positions_without_kept_embeddings(passes: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards long texts, whose rotary embeddings are computed by transformers."""
    monkeypatch.setattr(whole_pass, "MAX_POSITIONS", 16)
    model = model_of("llama")
    prepared = prepare_model(model, True)
    for first, own in ((8, True), (9, False)):
        found = logits_of(model, prepared, first=first)
        assert passes.pop() is own
        assert torch.equal(found, by_transformers(model, prepared, first=first))
        passes.clear()


def test_unknown_tokens_are_refused_by_transformers() -> None:
    """Guards the memory behind the embeddings."""
    model = model_of("llama")
    prepared = prepare_model(model, True)
    for token in (-1, model.config.vocab_size):
        with pytest.raises(IndexError):
            logits_of(model, prepared, 1, input_ids=torch.tensor([[token]]))


@pytest.mark.parametrize(("window", "own"), [(4, False), (5, True)])
def test_a_window_needs_a_mask(window: int, own: bool, passes: list[bool]) -> None:
    """Guards single rows of Mistral, for which transformers creates a mask once the text exceeds the window."""
    model = model_of("mistral")
    model.config.sliding_window = window
    prepared = prepare_model(model, True)
    found = logits_of(model, prepared, 1)
    assert passes == [own]
    assert torch.equal(found, by_transformers(model, prepared, 1))


def _scale_norm(model: Any) -> None:
    model.model.norm.weight = nn.Parameter(2 * model.model.norm.weight)


def _move_embeddings(model: Any) -> None:
    model.model.embed_tokens.weight.data = 1.5 * model.model.embed_tokens.weight.data


def _replace_embeddings(model: Any) -> None:
    model.model.embed_tokens = nn.Sequential(model.model.embed_tokens, nn.ReLU())


def _hook_embeddings(model: Any) -> None:
    model.model.embed_tokens.register_forward_hook(lambda _, __, output: 2 * output)


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
    before = logits_of(model, prepared)
    with torch.no_grad():
        change(model)
    found = logits_of(model, prepared)
    assert not torch.allclose(found, before)
    torch.testing.assert_close(found, logits_of(model, None), atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_a_reduced_number_of_layers_takes_effect(passes: list[bool]) -> None:
    """Guards early exits by the config, which transformers reads in every pass."""
    model = model_of("llama")
    prepared = prepare_model(model, True)
    model.config.num_hidden_layers -= 1
    found = logits_of(model, prepared, 1)
    assert not any(passes)
    torch.testing.assert_close(found, logits_of(model, None, 1), atol=1e-4, rtol=1e-4)
