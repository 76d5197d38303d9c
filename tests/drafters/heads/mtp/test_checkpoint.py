"""MTP checkpoints: the own layout, copies of the target's weights, and names that are no MTP tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from models import tiny_model
from mtps import FAMILIES, all_tensors, family_model, modules_of
from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint
from speculant.drafters.heads.checkpoints.formats import load_head
from speculant.drafters.heads.mtp import checkpoint as mtp
from speculant.drafters.heads.mtp.layouts import REFUSED, find_layout, is_mtp, plain_name
from speculant.drafters.heads.mtp.recipe import new_mtp
from speculant.engines.hf.views.target_parts import HFTargetParts


def test_the_own_layout_is_read_again(tmp_path: Path) -> None:
    """Guards `train mtp`: what is written is what drafts, and another target does not take it."""
    target = HFTargetParts(tiny_model("llama"))
    head = new_mtp(target)
    mtp.save(head, tmp_path, target)
    loaded: Any = load_head(tmp_path, target)
    assert (loaded.kind, loaded.method) == ("mtp", "mtp")
    read = loaded.head.state_dict()
    assert read.keys() == head.state_dict().keys()
    assert all(torch.equal(read[name], each) for name, each in head.state_dict().items())
    with pytest.raises(UnsupportedError, match="has layers of llama, but the target is a qwen3"):
        load_head(tmp_path, HFTargetParts(tiny_model("qwen3")))


@pytest.mark.parametrize("name", ["mimo", "mellum"])
def test_heads_of_models_are_written_too(tmp_path: Path, name: str) -> None:
    """Guards online distillation of a model's own layers: order and kind of attention are kept with the weights."""
    model = family_model(FAMILIES[name])
    target = HFTargetParts(model)
    tensors = {plain_name(key): each for key, each in all_tensors(modules_of(FAMILIES[name], model)).items()}
    head = mtp.load_native(Checkpoint("tiny", {}, tensors), target)
    mtp.save(head, tmp_path, target)
    found: Any = load_head(tmp_path, target).head
    hidden, following = torch.randn(9, 1, target.hidden_size), torch.arange(3, 12)
    with torch.inference_mode():
        for each in (states := [head.open(0, target), found.open(0, target)]):
            each.extend(hidden, following)
        torch.testing.assert_close(states[0].start(), states[1].start())


def test_copies_of_the_targets_weights_are_dropped() -> None:
    """Guards memory: DeepSeek's modules hold its embeddings and output projection again; others are used."""
    family = FAMILIES["glm4_moe"]
    model = family_model(family)
    target, layers = HFTargetParts(model), model.config.num_hidden_layers
    tensors = {plain_name(name): each for name, each in all_tensors(modules_of(family, model)).items()}
    copied = f"layers.{layers}.embed_tokens.weight", f"layers.{layers}.shared_head.head.weight"
    tensors[copied[0]], tensors[copied[1]] = model.get_input_embeddings().weight.clone(), model.lm_head.weight.clone()
    module = mtp.load_native(Checkpoint("tiny", {}, tensors), target).module(0)
    assert module.embed_tokens is None
    assert module.lm_head is None
    own = {name: tensors[name] + 1 for name in copied}
    module = mtp.load_native(Checkpoint("tiny", {}, tensors | own), target).module(0)
    ids, states = torch.tensor([3, 4]), torch.randn(2, target.hidden_size)
    assert torch.equal(module.embed(ids, target), own[copied[0]][ids])
    assert torch.equal(module.logits(states, target), states @ own[copied[1]].T)


@pytest.mark.parametrize("kind", REFUSED)
def test_families_that_cannot_be_run_are_refused_by_name(kind: str) -> None:
    """Guards against silently wrong drafts: the message names the family and the reason."""
    with pytest.raises(UnsupportedError, match=f"heads of {kind} cannot be run, since"):
        find_layout(kind, ["mtp.0.e_proj.weight"], 4)


def test_names_are_told_apart() -> None:
    """Guards what is read: no tensor of the target itself, whatever stands before its name."""
    assert is_mtp("model.layers.4.eh_proj.weight", 4)
    assert is_mtp("model.language_model.layers.5.enorm.weight", 4)
    assert is_mtp("mtp.fc.weight", 4)
    assert is_mtp("model.mtp_block.0.mlp.up_proj.weight", 4)
    assert not is_mtp("model.layers.3.mlp.up_proj.weight", 4)
    assert not is_mtp("model.visual.layers.30.mlp.up_proj.weight", 4)
    assert not is_mtp("lm_head.weight", 4)
