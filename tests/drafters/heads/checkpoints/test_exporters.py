"""What SpecForge, DeepSpec, ModelOpt and speculators export beyond the plain layouts, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import mtps
from eagles import HIDDEN, eagle3_head, started, states
from models import VOCABULARY, tiny_model
from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.checkpoints.formats import load_head
from speculant.drafters.heads.eagle3 import checkpoint as eagle3
from speculant.drafters.heads.layers import rotate_rows
from speculant.drafters.heads.medusa.head import MedusaHead
from speculant.drafters.heads.mtp.head import MtpHead
from speculant.engines.hf.cpu.head_layer import computable
from speculant.engines.hf.views.target_parts import HFTargetParts


def saved(folder: Path, target: HFTargetParts, top: dict[str, Any], inner: dict[str, Any]) -> Path:
    """Write an EAGLE-3 head with further fields, at the top and in `eagle_config`."""
    eagle3.save(eagle3_head(), folder, target)
    config = json.loads((folder / "config.json").read_text())
    config = config | top | {"eagle_config": config["eagle_config"] | inner}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


MODELOPT = {  # what ModelOpt writes beside the layers' ids
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
    "parallel_draft_heads_num_layers": 1,
}


def test_modelopts_fields_are_known(target: HFTargetParts, tmp_path: Path) -> None:
    """Guards against refusing what is exported: all its fields, at the values that mean the usual formula."""
    top = {"pretraining_tp": 1, "mlp_bias": False, "attention_dropout": 0.0, "logit_scale": 1.0}
    inner = MODELOPT | {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}
    assert load_head(saved(tmp_path, target, top, inner), target).head.taps == (1, 3, 4)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "use_last_layernorm": ({}, {"use_last_layernorm": False}),
    "use_mtp_layernorm": ({}, {"use_mtp_layernorm": True}),
    "next_layer_regular": ({}, {"next_layer_regular": False}),
    "parallel_draft_step": ({}, {"parallel_draft_step": 4}),
    "eagle_decoder_type": ({}, {"eagle_decoder_type": "kimik2"}),
    "zigzag": ({}, {"zigzag": True}),
    "is_causal": ({"is_causal": False}, {}),
    "logit_scale": ({"logit_scale": 0.5}, {}),
    "final_logit_softcapping": ({"final_logit_softcapping": 30.0}, {}),
    "hidden_act": ({"hidden_act": "gelu"}, {}),
    "hidden_activation": ({"hidden_activation": "gelu_pytorch_tanh"}, {}),  # DeepSpec's Gemma 4
    "attention_k_eq_v": ({"attention_k_eq_v": True}, {}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_fields_that_change_the_formula_are_refused(target: HFTargetParts, tmp_path: Path, name: str) -> None:
    """Guards against heads that draft by another formula than they were trained with: the field is named."""
    with pytest.raises(UnsupportedError, match=f"'{name}'"):
        load_head(saved(tmp_path, target, *REFUSED[name]), target)


@pytest.mark.parametrize("place", ["top", "rope_parameters"])
def test_partly_rotated_keys(target: HFTargetParts, tmp_path: Path, place: str) -> None:
    """Guards heads for Qwen3.5 and others that rotate the first numbers of a key alone: the field has its effect."""
    part = {"partial_rotary_factor": 0.5}
    rope = {"rope_type": "default", "rope_theta": 500.0}
    top = part if place == "top" else {"rope_parameters": rope | part}
    hidden, following = states(6)
    whole = load_head(saved(tmp_path, target, {}, {}), target).head
    head = load_head(saved(tmp_path, target, top, {}), target).head
    layer: Any = head.layers[0]  # type: ignore[attr-defined]
    assert (layer.self_attn.shape.rotary_dim, layer.self_attn.shape.head_dim) == (4, 8)
    assert not computable(layer)
    got = started(head, target, hidden, following)
    assert not torch.allclose(got, started(whole, target, hidden, following))
    keys, angle = torch.randn(2, 3, 8), torch.tensor([0.3, 1.1])
    found = rotate_rows(
        keys, (torch.cat([angle, angle]).cos().expand(3, 4), torch.cat([angle, angle]).sin().expand(3, 4))
    )
    assert torch.equal(found[..., 4:], keys[..., 4:])
    a, b = keys[..., :2], keys[..., 2:4]
    want = torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)
    torch.testing.assert_close(found[..., :4], want)
    again = tmp_path / "again"
    again.mkdir()
    eagle3.save(head, again, target)  # type: ignore[arg-type]
    assert torch.equal(started(load_head(again, target).head, target, hidden, following), got)


def test_modelopts_medusa_heads(tmp_path: Path) -> None:
    """Guards Medusa heads in ModelOpt's checkpoint, which holds the model too: the heads alone are taken."""
    model = tiny_model("llama")
    target = HFTargetParts(model)
    torch.manual_seed(0)
    size = target.hidden_size
    tensors = {"model.embed_tokens.weight": torch.zeros(VOCABULARY, size), "lm_head.weight": torch.zeros(3, 3)}
    for head in range(2):
        tensors[f"medusa_heads.{head}.0.linear.weight"] = torch.randn(size, size)
        tensors[f"medusa_heads.{head}.0.linear.bias"] = torch.randn(size)
        tensors[f"medusa_heads.{head}.1.weight"] = torch.randn(VOCABULARY, size)
    (tmp_path / "config.json").write_text(json.dumps({"medusa": {"num_medusa_heads": 2, "num_medusa_layers": 1}}))
    save_file(tensors, tmp_path / "model.safetensors")
    head = load_head(tmp_path, target).head
    assert isinstance(head, MedusaHead)
    hidden = torch.randn(3, 1, size)
    state = head.open(0, target)
    with torch.inference_mode():
        state.extend(hidden, torch.tensor([5, 6, 7]))
        f = target.norm(hidden[-1, 0])
        x = f + torch.nn.functional.silu(
            tensors["medusa_heads.0.0.linear.weight"] @ f + tensors["medusa_heads.0.0.linear.bias"]
        )
        got = state.start()
    torch.testing.assert_close(got[0], tensors["medusa_heads.0.1.weight"] @ x, atol=1e-4, rtol=1e-4)


SPECULATORS = {
    "pre_fc_norm_embedding": "token_layernorm",
    "pre_fc_norm_hidden": "hidden_layernorm",
    "mtp.fc": "mtp_layers.0.input_proj",
    "mtp.norm": "mtp_layers.0.final_layernorm",
    "mtp.layers.0.": "mtp_layers.0.",
    "mtp.": "mtp_layers.0.",
}


def fast_mtp(folder: Path, model: Any, module: Any, **changes: Any) -> Path:
    """Write a module as `speculators` does: its names, and experts in one tensor."""
    tensors = {}
    for name, tensor in module.tensors(0).items():
        for public, own in SPECULATORS.items():
            name = name.replace(public, own)
        tensors[name.replace("mtp_layers.0.mtp_layers.0.", "mtp_layers.0.")] = tensor.contiguous()
    config = {
        "speculators_model_type": "mtp",
        "architectures": ["MTPDraftModel"],
        "num_nextn_predict_layers": 1,
        "transformer_layer_config": {
            "model_type": model.config.model_type,
            "hidden_size": model.config.hidden_size,
            "vocab_size": model.config.vocab_size,
        },
    }
    (folder / "config.json").write_text(json.dumps(config | changes))
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_next"])
def test_mtp_of_speculators(tmp_path: Path, name: str) -> None:
    """Guards FastMTP's checkpoints: the formula with one module at all depths, the embedding before the state."""
    family = mtps.FAMILIES[name]
    model = mtps.family_model(family)
    modules, target = mtps.modules_of(family, model), HFTargetParts(model)
    head = load_head(fast_mtp(tmp_path, model, modules[0]), target).head
    assert isinstance(head, MtpHead)
    hidden, following = torch.randn(6, 1, target.hidden_size), torch.arange(3, 9)
    state = head.open(0, target)
    with torch.inference_mode():
        state.extend(hidden, following)
        got = [state.start()[0], state.grow([7], [-1])[0], state.grow([5], [0])[0]]
        given = target.norm(hidden[:, -1])
        want = [mtps.formula(modules, given, following, path) for path in ([], [7], [7, 5])]
    torch.testing.assert_close(torch.stack(got), torch.stack(want), atol=1e-4, rtol=1e-4)


def test_mtp_of_speculators_that_does_not_fit(tmp_path: Path) -> None:
    """Guards targets of another kind, several modules, and tensors that are missing or left over: each is named."""
    family = mtps.FAMILIES["qwen3_5"]
    model = mtps.family_model(family)
    module, target = mtps.modules_of(family, model)[0], HFTargetParts(model)
    with pytest.raises(UnsupportedError, match="num_nextn_predict_layers"):
        load_head(fast_mtp(tmp_path, model, module, num_nextn_predict_layers=2), target)
    fast_mtp(tmp_path, model, module)
    with pytest.raises(UnsupportedError, match="the target is a llama"):
        load_head(tmp_path, HFTargetParts(tiny_model("llama")))
    from safetensors.torch import load_file

    whole = load_file(tmp_path / "model.safetensors")
    for change, words in (
        ({"mtp_layers.0.input_proj.weight": None}, "eh_proj.weight"),
        ({"mtp_layers.0.other.weight": torch.zeros(HIDDEN)}, "other.weight"),
        ({"mtp_layers.0.final_layernorm.weight": torch.zeros(3)}, "norm.weight"),
    ):
        tensors = {name: each for name, each in (whole | change).items() if each is not None}
        save_file(tensors, tmp_path / "model.safetensors")
        with pytest.raises(UnsupportedError, match=words):
            load_head(tmp_path, target)
