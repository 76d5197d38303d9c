"""MTP layers in a model's own checkpoint: found, said, left out, and refused plainly."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from models import tiny_model
from mtps import FAMILIES, QWEN_LAYER, all_tensors, family_model, modules_of, write_checkpoint
from passes import plain_text
from speculant import Speculator
from speculant.core.errors import UsageError

PROMPT = [5, 9, 14, 3, 8, 9, 14]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the checkpoints of these tests are written: the same model at the same path is probed once."""
    return tmp_path_factory.mktemp("checkpoint")


@pytest.fixture
def folder(place: Path) -> Path:
    """Return that place, empty."""
    shutil.rmtree(place)
    place.mkdir()
    return place


def written(folder: Path, name: str, *, shards: bool = False) -> dict[str, Tensor]:
    """Write a model with MTP modules of a family; return their tensors."""
    family = FAMILIES[name]
    model = family_model(family)
    tensors = all_tensors(modules_of(family, model))
    write_checkpoint(folder, model, tensors, shards=shards)
    return tensors


def opened(folder: Path, **options: Any) -> Speculator:
    """Return a speculator of a model whose texts do not end."""
    speculator = Speculator.from_pretrained(str(folder), device="cpu", **{"nodes": 8} | options)
    speculator.model.generation_config.eos_token_id = None
    return speculator


@pytest.mark.parametrize(
    "name",
    [
        "qwen3_5",
        pytest.param("qwen3_5_moe", marks=pytest.mark.slow),
        "deepseek_v3",
        pytest.param("glm_moe_dsa", marks=pytest.mark.slow),
        "mimo of three",
        "nemotron_h",
    ],
)
def test_text_is_the_targets(folder: Path, name: str) -> None:
    """Guards losslessness and the default: the layers are found, said, united with `mix`, and change no token."""
    written(folder, name, shards=name == "qwen3_5")
    speculator = opened(folder)
    assert speculator.method == "mix-head"
    result = speculator.generate(PROMPT, max_new_tokens=16, temperature=0)
    assert result.ids == plain_text(speculator.model, torch.tensor([PROMPT]), 16)
    assert sum("own MTP layers draft" in note for note in result.stats.notes) == 1


@pytest.mark.parametrize("tree", ["dynamic", "chain"])
def test_the_head_drafts_alone(folder: Path, tree: str) -> None:
    """Guards `method="mtp"`, trees and chains, second turns and batches."""
    written(folder, "mimo of three")
    speculator = opened(folder, method="mtp", settings={"tree": tree})
    prompts = [PROMPT, [20, 3, 20], [42], [8, 8, 30, 31]]
    for result, prompt in zip(
        speculator.generate_batch(prompts, size=4, max_new_tokens=12, temperature=0), prompts, strict=True
    ):
        assert result.ids == plain_text(speculator.model, torch.tensor([prompt]), 12)
    first = speculator.generate(PROMPT, max_new_tokens=8, temperature=0)
    longer = PROMPT + list(first.ids) + [3, 4]
    assert speculator.generate(longer, max_new_tokens=8, temperature=0).ids == plain_text(
        speculator.model, torch.tensor([longer]), 8
    )


def test_named_methods_leave_it_out(folder: Path) -> None:
    """Guards `method="mix"`: it is what it was, and says nothing of layers that were not read."""
    written(folder, "mimo")
    speculator = opened(folder, method="mix")
    assert speculator.method == "mix"
    assert not any("MTP" in note for note in speculator.generate(PROMPT, max_new_tokens=2).stats.notes)


def test_models_without_it_are_as_ever(tmp_path: Path) -> None:
    """Guards the default without such layers, and that a head must be there where one is asked for."""
    tiny_model("qwen2").save_pretrained(tmp_path)
    assert opened(tmp_path).method == "mix"
    assert Speculator.from_transformers(tiny_model("qwen2")).method == "mix"
    with pytest.raises(UsageError, match="needs a trained head"):
        opened(tmp_path, method="mtp")


def test_models_of_the_hub_are_looked_for_in_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards names: the snapshot that was loaded is read, without asking the hub; other names are no error."""
    cached = tmp_path / "models--owner--tiny"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("abc")
    snapshot = cached / "snapshots" / "abc"
    written(snapshot, "mimo", shards=True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    model = AutoModelForCausalLM.from_pretrained(snapshot)
    for name, method in (("owner/tiny", "mix-head"), ("owner/other", "mix"), ("my own model", "mix"), ("", "mix")):
        model.name_or_path = name
        assert Speculator.from_transformers(model).method == method


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("missing", "it lacks mlp.up_proj.weight"),
        ("extra", "it has mlp.new.weight"),
        ("shape", "has the shape"),
        ("name", "their layout is unknown for models of type qwen2"),
        ("packed", "is quantised"),
        ("index", "cannot be listed"),
    ],
)
def test_what_cannot_be_used_is_a_note(folder: Path, change: str, reason: str) -> None:
    """Guards against silence and against errors: `mix` drafts, and one note gives the reason."""
    written(folder, "mimo")
    whole = folder / "model.safetensors"
    held = load_file(whole)
    name = "model.mtp_layers.0.mlp.up_proj.weight"
    if change in ("missing", "name"):
        weight = held.pop(name if change == "missing" else "model.mtp_layers.0.input_proj.weight")
    elif change == "extra":
        held["model.mtp_layers.0.mlp.new.weight"] = torch.zeros(2)
    elif change == "shape":
        weight = held[name]
        held[name] = weight[:-1].clone()
    elif change == "packed":
        held[name] = torch.zeros(2, 2, dtype=torch.int32)
    save_file(held, whole, metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(folder)
    if change == "index":
        (folder / "model.safetensors.index.json").write_text("[]")
    speculator = Speculator.from_transformers(model)
    assert speculator.method == "mix"
    notes = [note for note in speculator.generate(PROMPT, max_new_tokens=2).stats.notes if "MTP" in note]
    assert len(notes) == 1
    assert reason in notes[0]
    assert "left out" in notes[0]


def test_classes_that_do_not_run_alone_are_a_note(tmp_path: Path) -> None:
    """Guards requests: a target without the kind of layer that its modules are has no angles for them."""
    family = replace(FAMILIES["mellum"], changes={})
    model = family_model(family)
    write_checkpoint(tmp_path, model, all_tensors(modules_of(replace(family, layers=QWEN_LAYER), model)))
    speculator = opened(tmp_path)
    assert speculator.method == "mix"
    notes = speculator.generate(PROMPT, max_new_tokens=2).stats.notes
    assert any("they cannot be run: KeyError" in note for note in notes)


def test_fp8_blocks_are_read(tmp_path: Path) -> None:
    """Guards published DeepSeek weights: each block of a matrix has a scale of its own."""
    tensors = written(tmp_path, "mimo")
    name, whole = "model.mtp_layers.0.mlp.up_proj.weight", tmp_path / "model.safetensors"
    held, weight = load_file(whole), tensors["model.mtp_layers.0.mlp.up_proj.weight"]
    scales = torch.tensor([[0.01, 0.02], [0.03, 0.04], [0.05, 0.06]])
    wide = scales.repeat_interleave(16, 0).repeat_interleave(16, 1)
    held[name] = (weight / wide).to(torch.float8_e4m3fn)
    held[f"{name}_scale_inv"] = scales
    save_file(held, whole, metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    speculator: Any = Speculator.from_transformers(model)
    read = speculator.drafter.head.head.module(0).layers[0].layer.mlp.up_proj.weight
    assert torch.equal(read, held[name].float() * wide)
