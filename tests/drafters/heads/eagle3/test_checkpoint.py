"""EAGLE-3's and P-EAGLE's checkpoints in the layouts of the authors, SpecForge, DeepSpec and speculators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpointing import rewrite
from eagles import IDS, eagle3_head, eagle_head, p_eagle_head, started, states
from models import VOCABULARY
from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.checkpoints.checkpoint import read_checkpoint
from speculant.drafters.heads.checkpoints.formats import FORMATS, load_head
from speculant.drafters.heads.eagle import checkpoint as eagle
from speculant.drafters.heads.eagle3 import checkpoint as eagle3
from speculant.drafters.heads.eagle3.head import Eagle3Head
from speculant.drafters.heads.p_eagle.head import PEagleHead
from speculant.engines.hf.views.target_parts import HFTargetParts

IDS_KEY = "eagle_aux_hidden_state_layer_ids"
LAYERS = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 500.0,
    "vocab_size": VOCABULARY,
    "hidden_act": "silu",
}


def write(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Write a checkpoint."""
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def maps() -> dict[str, torch.Tensor]:
    """Return d2t and t2d of IDS."""
    t2d = torch.zeros(VOCABULARY, dtype=torch.bool)
    t2d[IDS] = True
    return {"d2t": IDS - torch.arange(len(IDS)), "t2d": t2d}


def check(folder: Path, target: HFTargetParts, head: Eagle3Head, kind: str = "eagle3") -> Eagle3Head:
    """Check that a folder holds a head, and return what was loaded."""
    loaded = load_head(folder, target)
    assert (loaded.kind, loaded.method) == (kind, kind)
    found = loaded.head
    assert isinstance(found, Eagle3Head)
    assert found.taps == head.taps
    hidden, following = states(6, len(head.taps))
    assert torch.equal(started(found, target, hidden, following), started(head, target, hidden, following))
    assert (found.ids is None) == (head.ids is None)
    assert found.ids is None or torch.equal(found.ids, IDS)
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"draft_vocabulary": 0},
        {"draft_vocabulary": 0, "own_output": False},
        {"norm_before_residual": True, "norm_before_fc": True},
        {"norm_output": True, "fc_norm": True, "own_embeddings": True},
        {"layers": 3, "taps": (0, 2, 6)},
        {"taps": (1, 2, 3, 5, 7), "layer": {"norms": True, "bias": True}},
        {"layers": 2, "wide": 2},
    ],
    ids=str,
)
def test_saved_heads_load_again(target: HFTargetParts, tmp_path: Path, changes: dict[str, Any]) -> None:
    """Guards the layout under every flag: shape, vocabulary, layers and weights survive saving, and saving again."""
    head = eagle3_head(**changes)
    eagle3.save(head, tmp_path, target)
    found = check(tmp_path, target, head)
    assert found.shape == head.shape
    again = tmp_path / "again"
    again.mkdir()
    eagle3.save(found, again, target)
    before, after = (load_file(folder / "model.safetensors") for folder in (tmp_path, again))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (again / "config.json").read_text() == (tmp_path / "config.json").read_text()


def test_the_saved_layout_is_what_engines_read(target: HFTargetParts, tmp_path: Path) -> None:
    """Guards vLLM and SGLang: names, offsets, and layers in the convention that each of them reads."""
    eagle3.save(eagle3_head(), tmp_path, target)
    tensors, config = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    assert {name for name in tensors if "norm" in name} == {
        "midlayer.hidden_norm.weight",
        "midlayer.input_layernorm.weight",
        "midlayer.post_attention_layernorm.weight",
        "norm.weight",
    }
    assert tensors["midlayer.self_attn.q_proj.weight"].shape == (32, 64)
    assert tensors["fc.weight"].shape == (32, 96)
    assert tensors["d2t"].dtype == torch.int64
    assert (torch.arange(len(IDS)) + tensors["d2t"]).tolist() == IDS.tolist()
    assert tensors["t2d"].nonzero().flatten().tolist() == IDS.tolist()
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config[IDS_KEY] == [2, 4, 5]  # vLLM: boundaries
    assert config["eagle_config"][IDS_KEY] == [1, 3, 4]  # SGLang: layers
    assert config["draft_vocab_size"] == len(IDS)
    assert config["norm_before_residual"] is False
    assert "norm_output" not in config


def test_the_authors_layout_loads(target: HFTargetParts, tmp_path: Path) -> None:
    """Guards the authors' files: `midlayer`, no layer ids, no flags, maps as offsets; without head_dim, D / heads."""
    head = eagle3_head()
    tensors = {name.replace("layers.0.", "midlayer."): each for name, each in head.state_dict().items()} | maps()
    config = {name: value for name, value in LAYERS.items() if name != "head_dim"}
    write(tmp_path, config | {"architectures": ["LlamaForCausalLM"], "draft_vocab_size": len(IDS)}, tensors)
    check(tmp_path, target, head)


def test_specforges_layout_loads(target: HFTargetParts, tmp_path: Path) -> None:
    """Guards SpecForge's files: own embeddings, ids of layers, `norm_output` true as the usual formula, full maps."""
    head = eagle3_head(own_embeddings=True, draft_vocabulary=0, taps=(2, 3, 6), fc_norm=True)
    tensors = {name.replace("layers.0.", "midlayer."): each for name, each in head.state_dict().items()}
    tensors |= {"d2t": torch.zeros(VOCABULARY, dtype=torch.int64), "t2d": torch.ones(VOCABULARY, dtype=torch.bool)}
    config = LAYERS | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": VOCABULARY,
        "eagle_config": {IDS_KEY: [2, 3, 6], "use_aux_hidden_state": True},
        "norm_output": True,
        "fc_norm": True,
        "rope_scaling": None,
        "num_hidden_layers": 1,
    }
    write(tmp_path, config, tensors)
    check(tmp_path, target, head)
    rewrite(tmp_path, {"config": {"norm_output": False}})
    with pytest.raises(UnsupportedError, match="Remove it"):
        load_head(tmp_path, target)


def test_deepspecs_layout_loads(target: HFTargetParts, tmp_path: Path) -> None:
    """Guards DeepSpec's files: five layers by their ids, Qwen3's norms, full vocabulary, `layers.0`."""
    head = eagle3_head(taps=(1, 2, 4, 5, 6), draft_vocabulary=0, own_embeddings=True, layer={"norms": True})
    config = LAYERS | {
        "architectures": ["Qwen3Eagle3Model"],
        "model_type": "qwen3",
        "target_layer_ids": [1, 2, 4, 5, 6],
        "num_target_layers": 8,
        "num_hidden_layers": 1,
        "layer_types": ["full_attention"],
        "ttt_length": 7,
        "step_loss_decay": 0.8,
        "norm_topk_prob": True,
    }
    write(tmp_path, config, head.state_dict())
    check(tmp_path, target, head)


@pytest.mark.parametrize("flag", [None, "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"])
def test_speculators_layout_loads(target: HFTargetParts, tmp_path: Path, flag: str | None) -> None:
    """Guards speculators' files: nested config, boundaries, every flag, shared tensors that are NaN or of training."""
    flags = {} if flag is None else {flag: True}
    head = eagle3_head(layers=2, taps=(0, 2, 6), **flags)
    tensors = dict(head.state_dict()) | maps()
    tensors["embed_tokens.weight"] = torch.full((VOCABULARY, 32), torch.nan)
    tensors["verifier_norm.weight"] = torch.zeros(32)
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": len(IDS),
        IDS_KEY: [1, 3, 7],
        "transformer_layer_config": LAYERS | {"model_type": "llama", "num_hidden_layers": 2},
        "embed_requires_grad": False,
        **flags,
    }
    write(tmp_path, config, tensors)
    check(tmp_path, target, head)


def test_p_eagle_of_speculators_loads(target: HFTargetParts, tmp_path: Path) -> None:
    """Guards P-EAGLE: mask token and state, default boundaries, and the depth that its config proposes."""
    head = p_eagle_head(depth=5, own_embeddings=True)
    config = {
        "speculators_model_type": "peagle",
        "draft_vocab_size": len(IDS),
        "mask_token_id": 3,
        "transformer_layer_config": LAYERS
        | {"num_hidden_layers": 2, "rope_parameters": {"sliding_attention": {"rope_theta": 500.0}}},
        "speculators_config": {"proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}]},
    }
    write(tmp_path, config, dict(head.state_dict()) | maps())
    found = check(tmp_path, target, head, "p-eagle")
    assert isinstance(found, PEagleHead)
    assert (found.mask_token, found.depth) == (3, 5)
    rewrite(tmp_path, {"config": {"mask_token_id": None}})
    with pytest.raises(UnsupportedError, match="mask_token_id"):
        load_head(tmp_path, target)


def test_p_eagle_of_specforge_loads(target: HFTargetParts, tmp_path: Path) -> None:
    """Guards the layout in which P-EAGLE is saved."""
    head = p_eagle_head(depth=3)
    eagle3.save(head, tmp_path, target)
    found = check(tmp_path, target, head, "p-eagle")
    assert isinstance(found, PEagleHead)
    assert (found.mask_token, found.depth) == (3, 3)


def test_no_folder_is_of_two_formats(target: HFTargetParts, tmp_path: Path) -> None:
    """Guards detection: exactly one format matches each checkpoint, also EAGLE-3 with two layers' states."""
    heads = {"eagle": eagle_head(), "eagle3": eagle3_head(), "two": eagle3_head(taps=(1, 3), layers=2)}
    for name, head in (heads | {"p-eagle": p_eagle_head()}).items():
        folder = tmp_path / name
        folder.mkdir()
        (eagle if name == "eagle" else eagle3).save(head, folder, target)
        checkpoint = read_checkpoint(folder)
        assert [each.kind for each in FORMATS if each.matches(checkpoint)] == ["eagle3" if name == "two" else name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drop": "fc.weight"}, "lacks fc.weight"),
        ({"drop": "norm.weight"}, r"lacks norm\.weight"),
        ({"drop": "midlayer.mlp.up_proj.weight"}, r"lacks layers\.0\.mlp\.up_proj\.weight"),
        ({"drop": "d2t"}, "lacks d2t"),
        ({"drop": "lm_head.weight"}, r"lacks lm_head\.weight"),
        ({"add": ("midlayer.self_attn.o_proj.bias", (32,))}, r"unexpected .*o_proj\.bias"),
        ({"add": ("input_norm.weight", (96,))}, r"unexpected .*input_norm\.weight"),
        ({"add": ("midlayer.mlp.up_proj.weight", (47, 32))}, r"of shape \[47, 32\]"),
        ({"add": ("fc.weight", (32, 64))}, "size 21"),
        ({"add": ("fc.weight", (32, 97))}, "reads 97 numbers"),
        ({"add": ("embed_tokens.weight", (60, 32))}, "vocabulary of 60"),
        ({"put": ("d2t", IDS)}, "offsets"),
        ({"put": ("t2d", torch.ones(VOCABULARY, dtype=torch.bool))}, "different tokens"),
        ({"config": {"vocab_size": 100}}, "vocabulary of 100"),
        ({"config": {"num_hidden_layers": 2}}, r"lacks layers\.1\."),
        ({"config": {"fc_norm": True}}, r"lacks fc_norm\.0\.weight"),
        ({"config": {"fc_norm": True, "norm_before_fc": True, "eagle_config": {}}}, "both"),
        ({"config": {"norm_before_fc": True}}, "to two different values"),
        ({"config": {"norm_everything": True}}, "norm_everything"),
        ({"config": {"eagle_config": {"use_aux_hidden_state": False}}}, "use_aux_hidden_state"),
        ({"config": {"hidden_act": "gelu"}}, "hidden_act"),
        ({"config": {"layer_types": ["sliding_attention"]}}, "sliding_attention"),
        ({"config": {IDS_KEY: [0, 4, 5]}}, "embeddings"),
        (
            {"config": {IDS_KEY: [2, 4, 9]}},
            "has no layer 8: its 8 layers are counted from 0 to 7",
        ),
        ({"config": {IDS_KEY: [2, 2, 5]}}, "one of them is named twice.*wrong layers"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named(
    target: HFTargetParts, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    """Guards strict loading: missing, extra and mis-shaped weights, contradicting maps, unknown flags, wrong layers."""
    eagle3.save(eagle3_head(), tmp_path, target)
    rewrite(tmp_path, change)
    with pytest.raises(UnsupportedError, match=message):
        load_head(tmp_path, target)
