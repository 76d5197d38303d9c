"""EAGLE-1's checkpoints, as the authors publish them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from checkpointing import rewrite
from eagles import eagle_head, started, states, target_model
from speculant.core.errors import ModelNotFoundError, UnsupportedError
from speculant.drafters.heads.checkpoints.formats import load_head
from speculant.drafters.heads.eagle import checkpoint as eagle
from speculant.drafters.heads.eagle.head import EagleHead
from speculant.engines.hf.views.target_parts import HFTargetParts


def loaded(folder: Path, target: HFTargetParts) -> EagleHead:
    """Return the head of a folder."""
    head = load_head(folder, target).head
    assert isinstance(head, EagleHead)
    return head


@pytest.mark.parametrize(("fc_bias", "bias"), [(True, False), (False, False), (True, True)])
def test_saved_heads_load_again(target: HFTargetParts, tmp_path: Path, *, fc_bias: bool, bias: bool) -> None:
    """Guards the layout: names, biases, rotary base and norms survive saving."""
    head = eagle_head(fc_bias=fc_bias, bias=bias, eps=1e-5)
    eagle.save(head, tmp_path, target)
    found = loaded(tmp_path, target)
    assert found.state_dict().keys() == head.state_dict().keys()
    assert torch.equal(started(found, target, *states(6, 1)), started(head, target, *states(6, 1)))


def test_the_authors_files_load(target: HFTargetParts, tmp_path: Path) -> None:
    """Guards pytorch_model.bin in fp16 with a copy of the embeddings, and a config without newer keys."""
    head = eagle_head()
    tensors = {name: tensor.half() for name, tensor in head.state_dict().items()}
    tensors["embed_tokens.weight"] = torch.zeros(61, 32).half()
    tensors["layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "rope_theta": 500.0,
        "rope_scaling": None,
        "vocab_size": 61,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = loaded(tmp_path, target)
    assert found.fc.weight.dtype == torch.float16
    assert torch.equal(found.fc.weight, tensors["fc.weight"])
    wanted = started(head, target, *states(6, 1))
    assert torch.allclose(started(found.float(), target, *states(6, 1)), wanted, atol=0.05)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drop": "fc.weight"}, "no known format"),
        ({"drop": "fc.bias"}, "lacks fc.bias"),
        ({"drop": "layers.0.mlp.up_proj.weight"}, r"lacks layers\.0\.mlp\.up_proj\.weight"),
        ({"add": ("layers.1.mlp.up_proj.weight", (48, 32))}, r"has the unexpected layers\.1\.mlp\.up_proj\.weight"),
        ({"add": ("layers.0.input_layernorm.weight", (32,))}, "input norm"),
        ({"add": ("layers.0.self_attn.q_proj.bias", (32,))}, r"unexpected .*q_proj\.bias"),
        ({"add": ("layers.0.mlp.up_proj.weight", (47, 32))}, r"up_proj\.weight of shape \[47, 32\]"),
        ({"config": {"bias": False}}, r"unexpected .*fc\.bias"),
        ({"config": {"vocab_size": 60}}, "vocabulary of 60"),
        ({"config": {"num_attention_heads": None}}, "num_attention_heads"),
        ({"config": {"rope_parameters": {"rope_type": "mrope", "rope_theta": 1.0}}}, "mrope"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named(
    target: HFTargetParts, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    """Guards strict loading: missing, extra and mis-shaped weights, wrong values and heads of other training."""
    eagle.save(eagle_head(), tmp_path, target)
    rewrite(tmp_path, change)
    with pytest.raises(UnsupportedError, match=message):
        load_head(tmp_path, target)


def test_a_head_of_another_size_is_refused(tmp_path: Path, target: HFTargetParts) -> None:
    """Guards wrong targets: both sizes are named."""
    eagle.save(eagle_head(), tmp_path, target)
    other = HFTargetParts(target_model(hidden_size=48, num_hidden_layers=1))
    with pytest.raises(UnsupportedError, match="size 32, but the target's have 48"):
        load_head(tmp_path, other)


def test_code_in_pickles_is_not_run(target: HFTargetParts, tmp_path: Path) -> None:
    """Guards against files that execute something when they are loaded."""

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "ran",))  # type: ignore[return-value]

    torch.save({"fc.weight": Evil()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelNotFoundError, match="cannot be read as weights"):
        load_head(tmp_path, target)
    assert not (tmp_path / "ran").exists()


def test_scaled_rotary_embeddings_are_saved_for_all_readers(target: HFTargetParts, tmp_path: Path) -> None:
    """Guards rope: scaling is written under both of its names, and read from either."""
    rope = {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}
    frequencies, scale = target.frequencies(rope, 8, 256)
    eagle.save(eagle_head(rope=rope, frequencies=frequencies, scale=scale), tmp_path, target)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["rope_parameters"] == config["rope_scaling"] == rope
    rewrite(tmp_path, {"config": {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}})
    assert torch.allclose(loaded(tmp_path, target).rotary.frequencies, frequencies)
    assert load_file(tmp_path / "model.safetensors").keys() == eagle_head().state_dict().keys()
