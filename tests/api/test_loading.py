"""Getting models: what goes wrong is said plainly."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from speculant import Speculator
from speculant.api.loading import bundled_draft_model, bundled_model, is_bundled, load_model, load_tokenizer
from speculant.core.errors import ModelNotFoundError, TokenizerError, UsageError


def test_the_bundled_model_fits_other_engines() -> None:
    """Guards the shape that llama.cpp and others need."""
    model, tokenizer = load_model()
    config = model.config
    assert model.dtype == torch.float32
    assert config.head_dim in (32, 64)
    assert config.num_attention_heads % 2 == config.num_key_value_heads % 2 == 0
    assert config.hidden_size % 32 == config.intermediate_size % 32 == config.vocab_size % 32 == 0
    assert config.max_position_embeddings >= 1024
    assert len(tokenizer) == config.vocab_size
    assert sum(path.stat().st_size for path in bundled_model().iterdir()) < 30 << 20


def test_the_bundled_draft_model_fits_the_bundled_model() -> None:
    """Guards the size of the draft model, and that it is loaded by its folder and shares the target's tokens."""
    draft, tokenizer = load_model(str(bundled_draft_model()))
    target = AutoConfig.from_pretrained(bundled_model())
    assert tokenizer.get_vocab() == load_tokenizer().get_vocab()
    assert 300_000 <= sum(p.numel() for p in draft.parameters()) <= 500_000
    assert sum(path.stat().st_size for path in bundled_draft_model().iterdir()) <= 2 << 20
    for name in ("vocab_size", "bos_token_id", "eos_token_id", "max_position_embeddings"):
        assert getattr(draft.config, name) == getattr(target, name)


def test_names_of_the_bundled_model() -> None:
    """Guards the default draft model, which is for the bundled target alone."""
    assert is_bundled(None)
    assert is_bundled(str(bundled_model()))
    assert not is_bundled("")
    assert not is_bundled(str(bundled_draft_model()))


def test_the_bundled_tokenizer_spells_anything() -> None:
    """Guards byte fallback: text outside the vocabulary survives."""
    tokenizer = load_tokenizer()
    for text in ("Once upon a time.", 'She said, "Hi!"\n\nThe end.', "naïve 日本 🐶", "  two  spaces"):
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_a_missing_folder_and_an_unreachable_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the two ways in which there is no model."""
    with pytest.raises(ModelNotFoundError, match="does not exist"):
        load_model("./no/such/folder")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFoundError, match="no folder nobody/nothing"):
        load_model("nobody/nothing")


def test_a_damaged_model(tmp_path: Path) -> None:
    """Guards a checkpoint that is cut short."""
    shutil.copytree(bundled_model(), tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelNotFoundError, match="cannot be loaded"):
        load_model(str(tmp_path / "model"))


def test_a_model_without_tokenizer_still_takes_ids(tmp_path: Path) -> None:
    """Guards checkpoints of weights alone."""
    folder = tmp_path / "model"
    shutil.copytree(bundled_model(), folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).unlink()
    speculator = Speculator.from_pretrained(str(folder))
    assert speculator.tokenizer is None
    assert len(speculator.generate([1, 300, 301], max_new_tokens=4).ids) <= 4
    with pytest.raises(TokenizerError, match="tokenizer"):
        speculator.generate("text")


def test_an_unknown_dtype() -> None:
    """Guards typos in --dtype."""
    with pytest.raises(UsageError, match="no dtype 'float31'"):
        load_model(dtype="float31")
