"""New draft models: their shape, their embeddings, and configs of other models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from models import tiny_model
from speculant.core.errors import ModelNotFoundError, UsageError
from speculant.engines.hf.views.target_parts import HFTargetParts
from speculant.training.draft_model.model import new_draft_model, principal_components


def test_a_new_draft_model_is_a_fraction_of_its_target() -> None:
    """Guards the default shape: width and layers follow the target's, vocabulary and special tokens are the same."""
    target = HFTargetParts(tiny_model("llama", hidden_size=256, num_attention_heads=8, num_hidden_layers=3))
    config = new_draft_model(target).model.config
    assert (config.hidden_size, config.head_dim, config.num_attention_heads) == (64, 32, 2)
    assert (config.num_hidden_layers, config.intermediate_size) == (2, 176)
    assert (config.vocab_size, config.eos_token_id, config.max_position_embeddings) == (61, 2, 256)
    assert config.tie_word_embeddings
    wide = new_draft_model(target, hidden=96, heads=8, kv_heads=2, head_dim=16, inner=64, layers=1).model.config
    assert (wide.hidden_size, wide.num_attention_heads, wide.num_key_value_heads) == (96, 8, 2)
    assert (wide.head_dim, wide.intermediate_size, wide.num_hidden_layers) == (16, 64, 1)


def test_embeddings_begin_as_the_targets() -> None:
    """Guards the start: angles between tokens are the target's, as far as fewer dimensions hold them."""
    table = torch.randn(61, 4, generator=torch.Generator().manual_seed(0)) @ torch.randn(
        4, 32, generator=torch.Generator().manual_seed(1)
    )
    narrow = principal_components(table, 8)
    assert narrow.shape == (61, 8)
    scale = (table @ table.T).norm() / (narrow @ narrow.T).norm()
    torch.testing.assert_close(scale * narrow @ narrow.T, table @ table.T, atol=1e-3, rtol=1e-3)
    target = tiny_model("llama")
    student = new_draft_model(HFTargetParts(target), hidden=16).model
    mine, whole = student.get_input_embeddings().weight, principal_components(target.model.embed_tokens.weight, 16)
    torch.testing.assert_close(mine @ mine.T, whole @ whole.T)
    assert student.lm_head.weight is mine


@pytest.mark.parametrize("name", ["gpt2", "gemma3", "qwen3"])
def test_a_shape_like_another_model(name: str, tmp_path: Path) -> None:
    """Guards --like: its architecture, but the target's vocabulary, and other layers or widths where they are named."""
    tiny_model(name, vocab_size=99).config.save_pretrained(tmp_path)
    target = HFTargetParts(tiny_model("llama"))
    model = new_draft_model(target, like=str(tmp_path), layers=2).model
    assert model.config.model_type == tiny_model(name).config.model_type
    assert (model.config.vocab_size, model.config.num_hidden_layers, model.config.hidden_size) == (61, 2, 32)
    with torch.no_grad():
        assert model(torch.tensor([[3, 4, 5]])).logits.shape == (1, 3, 61)


def test_shapes_that_cannot_be_are_refused(tmp_path: Path) -> None:
    """Guards --set and --like: the cause is named."""
    target = HFTargetParts(tiny_model("llama"))
    with pytest.raises(UsageError, match="layers of a new draft model must be 1 or more"):
        new_draft_model(target, layers=-1)
    tiny_model("gpt2").config.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="no 'head_dim'"):
        new_draft_model(target, like=str(tmp_path), head_dim=8)
    with pytest.raises(UsageError, match="cannot be built"):
        new_draft_model(target, like=str(tmp_path), hidden=30)
    with pytest.raises(ModelNotFoundError, match="no model at"):
        new_draft_model(target, like=str(tmp_path / "nothing"))
