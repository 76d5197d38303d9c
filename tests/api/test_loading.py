"""Getting models: what goes wrong is said plainly."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from models import tiny_model
from speculant import Speculator
from speculant.api.loading import (
    bundled_draft_model,
    bundled_head_folder,
    bundled_model,
    find_draft_model,
    find_model,
    find_tokenizer,
    is_bundled,
    load_model,
    load_tokenizer,
)
from speculant.core.errors import FileError, ModelNotFoundError, TokenizerError, UsageError
from speculant.core.hub import asking, hub_advice
from speculant.drafters.heads.checkpoints.checkpoint import find_folder
from speculant.memory.bases import find_base, find_bundled_base
from speculant.registry import find_method


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
    with pytest.raises(ModelNotFoundError, match="no model at nobody/nothing: it has not been downloaded"):
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


def test_a_tokenizer_without_tokens_is_none(tmp_path: Path) -> None:
    """Guards the cause that users are told: for some classes transformers makes a tokenizer out of no files."""
    tiny_model("gpt2").save_pretrained(tmp_path)
    speculator = Speculator.from_pretrained(str(tmp_path))
    with pytest.raises(TokenizerError, match="has no tokenizer"):
        speculator.generate("text")
    with pytest.raises(TokenizerError, match="it has no tokenizer file"):
        load_tokenizer(str(tmp_path))


def test_an_unknown_dtype() -> None:
    """Guards typos in --dtype."""
    with pytest.raises(UsageError, match="no device 'gpu'; try cpu"):
        load_model(device="gpu")
    with pytest.raises(UsageError, match="no dtype 'float31'"):
        load_model(dtype="float31")


def test_bundled_is_a_name_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the model, its draft model, tokenizer, heads and base, unless something here is called so."""
    monkeypatch.chdir(tmp_path)
    assert find_model("bundled") == find_model(None) == find_tokenizer("bundled") == str(bundled_model())
    assert find_draft_model("bundled") == str(bundled_draft_model())
    assert find_base("bundled") == find_bundled_base()
    assert bundled_head_folder().name == "eagle"
    assert bundled_head_folder(find_method("medusa")).name == "medusa"
    with pytest.raises(UsageError, match="there are eagle, mtp, eagle3, dflash, medusa"):
        bundled_head_folder(find_method("hydra"))
    assert is_bundled("bundled")
    (tmp_path / "bundled").mkdir()
    with pytest.raises(ModelNotFoundError, match=r"no config\.json"):
        find_model("bundled")


def test_the_hub_can_be_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has set HF_HUB_OFFLINE is not advised to set it."""
    assert "HF_HUB_OFFLINE=1" in hub_advice()
    assert "looking it up on the hub" in asking("nobody/nothing")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" not in hub_advice()
    assert "looking it up on the hub" not in asking("nobody/nothing")
    loaders = ((load_model, ModelNotFoundError), (load_tokenizer, TokenizerError), (find_folder, ModelNotFoundError))
    for load, error in loaders:
        with pytest.raises(error, match="it has not been downloaded, and HF_HUB_OFFLINE is set"):
            load("nobody/nothing")


def test_a_name_without_an_owner_is_no_name_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards a misspelt folder, for which the hub was asked for a minute; the hub's oldest names have no owner."""
    with pytest.raises(ModelNotFoundError, match="no such folder here, and names on the hub have the form owner/name"):
        find_model("nomodel")
    with pytest.raises(TokenizerError, match="owner/name"):
        find_tokenizer("nomodel")
    assert find_model("gpt2") == "gpt2"
    assert find_model("nobody/nothing") == "nobody/nothing"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "models--nomodel").mkdir()
    assert find_model("nomodel") == "nomodel"


def test_a_missing_base_is_no_memory_file(tmp_path: Path) -> None:
    """It is called what the user named it."""
    with pytest.raises(FileError, match="there is no base"):
        find_base(str(tmp_path / "missing"))
