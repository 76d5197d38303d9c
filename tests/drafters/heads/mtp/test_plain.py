"""MTP modules of plain layers as heads of EAGLE's family: the class in transformers gives the same logits."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from eagles import compare_histories, mtp_head, states, target_model
from mtps import FAMILIES, all_tensors, family_model, modules_of
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint
from speculant.drafters.heads.feature_state import FeatureState
from speculant.drafters.heads.head import HeadState
from speculant.drafters.heads.mtp.checkpoint import load_native
from speculant.drafters.heads.mtp.head import MtpHead, MtpState
from speculant.drafters.heads.mtp.layouts import plain_name
from speculant.engines.hf.views.target_parts import HFTargetParts

SCALED = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0}
SCALED |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"kind": "mistral"},
    "qwen2": {"kind": "qwen2", "hidden_first": True, "bias": True},
    "qwen3": {"kind": "qwen3", "embeddings": True, "output": True},
    "without a last norm": {"norm": False},
}


@torch.inference_mode()
def drafted(state: HeadState) -> list[Tensor]:
    """Return all logits of a text: committed rows, a tree, a chain, and a draft after more committed rows."""
    hidden, following = states(20, 1)
    state.extend(hidden[:14], following[:14])
    found = [state.start(), state.grow([3, 4], [-1, -1]), state.grow([6, 7, 8], [0, 0, 1]), state.grow([9], [4])]
    state.drop()
    state.extend(hidden[14:16], following[14:16])
    return [*found, state.start(), state.grow([9], [-1]), state.grow([10], [0])]


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_those_of_the_class(name: str) -> None:
    """Guards orders, biases, norms and rotary embeddings of every family whose layers are plain."""
    head, target = mtp_head(**VARIANTS[name]), HFTargetParts(target_model())
    state = head.open(0, target)
    assert isinstance(state, FeatureState)
    for one, other in zip(drafted(state), drafted(MtpState(head, target, 0)), strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=2e-5)


def test_scaled_rotary_embeddings_are_the_targets() -> None:
    """Guards frequencies: those that the target's own rotary embedding has, not those of its base."""
    target = HFTargetParts(target_model(rope_parameters=SCALED))
    head = mtp_head(config={"rope_parameters": SCALED})
    state = head.open(0, target)
    assert isinstance(state, FeatureState)
    for one, other in zip(drafted(state), drafted(MtpState(head, target, 0)), strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("seed", range(2))
def test_cached_rows_equal_rows_read_at_once(seed: int) -> None:
    """Guards rows after drafts, rollbacks and second turns."""
    compare_histories(mtp_head(), HFTargetParts(target_model()), 1, seed)


def test_the_view_has_the_heads_own_weights() -> None:
    """Guards training beside requests and saving: weights are shared, also by copies, and named as before."""
    head, target = mtp_head(), HFTargetParts(target_model())
    names = [*head.state_dict()]
    before = drafted(head.open(0, target))
    other = copy.deepcopy(head)
    with torch.no_grad():
        other.module(0).layers[0].layer.mlp.down_proj.weight.mul_(2)
    assert [*head.state_dict()] == [*other.state_dict()] == names
    assert torch.equal(drafted(head.open(0, target))[-1], before[-1])
    assert not torch.equal(drafted(other.open(0, target))[-1], before[-1])
    head.module(0).layers[0].layer.mlp.down_proj.weight = torch.nn.Parameter(torch.zeros(32, 48))
    assert not torch.equal(drafted(head.open(0, target))[-1], before[-1])


@pytest.mark.parametrize("change", ["window", "text length", "part", "several layers"])
def test_other_layers_run_as_their_class(change: str) -> None:
    """Guards what is not plain: windows, rotary embeddings that change with the text, changed parts."""
    if change == "text length":
        head = mtp_head(config={"rope_parameters": {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 2.0}})
    else:
        head = mtp_head()
    layer: Any = head.module(0).layers[0]
    if change == "window":
        layer.window = 4
    if change == "part":
        layer.layer.mlp.act_fn = torch.nn.GELU()
    if change == "several layers":
        head.module(0).layers.append(copy.deepcopy(layer))
    assert isinstance(head.open(0, HFTargetParts(target_model())), MtpState)


@pytest.mark.parametrize("name", ["qwen3_5", "deepseek_v3", "glm4_moe", "ernie4_5", "mimo of three"])
def test_other_families_run_as_their_class(name: str) -> None:
    """Guards families whose layers compute something else, and modules that follow each other."""
    family = FAMILIES[name]
    model = family_model(family)
    tensors = {plain_name(key): each for key, each in all_tensors(modules_of(family, model)).items()}
    target = HFTargetParts(model)
    head = load_native(Checkpoint("tiny", {}, tensors), target)
    assert isinstance(head, MtpHead)
    assert isinstance(head.open(0, target), MtpState)
