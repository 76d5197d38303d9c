"""Getting quantised models: rounded, kept packed between starts, read packed, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models import deep_model
from speculant.core.errors import ModelError, ModelNotFoundError, UnsupportedError, UsageError
from speculant.engines.hf.loading import load_model
from speculant.engines.hf.quantized import loading
from speculant.engines.hf.quantized.experts import expert_weights
from speculant.engines.hf.quantized.modules import quantized_modules
from speculant.engines.hf.quantized.rounding import round_weight

pytestmark = pytest.mark.usefixtures("compiled")
IDS = torch.tensor([[5, 9, 14, 3, 8, 5, 9, 14]])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a tiny model, with a cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    deep_model("qwen2").to(torch.bfloat16).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def load(folder: Path, **options: Any) -> Any:
    """Return a model without its tokenizer."""
    return load_model(str(folder), **options)[0]


def logits(model: Any) -> Tensor:
    """Return what a model says of the ids."""
    with torch.inference_mode():
        found: Tensor = model(IDS).logits
    return found


def kept(folder: Path) -> list[Path]:
    """Return the files of packed weights."""
    return sorted((folder.parent / "cache" / "speculant" / "quantized").glob("*"))


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_a_second_start_maps_what_the_first_has_rounded(
    folder: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the file, that nothing is rounded twice, and every weight: in 8 bits those that int4 would harm most."""
    first = load(folder, quantize=scheme)
    assert [str(each) for each in kept(folder)] == [first.quantized_summary.file]
    monkeypatch.setattr(loading, "quantize", None)
    second = load(folder, quantize=scheme)
    assert torch.equal(logits(first), logits(second))
    plain = load(folder)
    for name, module in quantized_modules(second):
        bits = 8 if scheme == "int8" or name.endswith(("lm_head", "embed_tokens", "v_proj")) else 4
        assert module.quantized.bits == bits
        expected = round_weight(plain.get_submodule(name).weight, "int8" if bits == 8 else "int4")
        assert torch.equal(module.quantized.dequantize(), expected.dequantize())
    assert len([*quantized_modules(second)]) == 3 * 7 + 2
    assert all(torch.equal(each, plain.get_parameter(name)) for name, each in second.named_parameters())
    assert second.generation_config.to_dict() == plain.generation_config.to_dict()
    assert not any(each.requires_grad for each in second.parameters())


def test_ties_dtypes_and_scaled_embeddings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards Gemma's embedding, which is the output head, too, and passes in bfloat16."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    deep_model("gemma3").to(torch.bfloat16).save_pretrained(tmp_path / "model")
    for dtype in ("float32", "bfloat16", "auto"):
        model, plain = load(tmp_path / "model", quantize="int8", dtype=dtype), load(tmp_path / "model", dtype=dtype)
        assert model.lm_head.quantized is model.model.embed_tokens.quantized
        assert model.dtype is plain.dtype
        torch.testing.assert_close(logits(model), logits(plain), atol=0.2, rtol=0.05)


@pytest.mark.parametrize("harm", ["cut", "changed", "another layout"])
def test_damaged_files_are_made_anew(folder: Path, harm: str) -> None:
    """Guards that damage costs time only, and that it is said."""
    first = load(folder, quantize="int8")
    [path] = kept(folder)
    whole = path.read_bytes()
    damaged = {
        "cut": whole[:-100],
        "changed": whole[:-1] + bytes([whole[-1] ^ 1]),
        "another layout": whole.replace(b'\\"layout\\": 1', b'\\"layout\\": 7', 1),
    }[harm]
    assert damaged != whole
    path.write_bytes(damaged)
    second = load(folder, quantize="int8")
    assert "made again" in str(second.quantized_summary)
    assert torch.equal(logits(first), logits(second))
    assert path.read_bytes() == whole


def test_a_changed_checkpoint_is_rounded_again(folder: Path) -> None:
    """Guards the file's name, which is made from the checkpoint's files."""
    load(folder, quantize="int8")
    weights = load_file(folder / "model.safetensors")
    save_file({name: each * 2 for name, each in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    os.utime(folder / "model.safetensors", ns=(1, 1))
    found = load(folder, quantize="int8").lm_head.dequantize()
    assert len(kept(folder)) == 2
    torch.testing.assert_close(found, load(folder).lm_head.weight.data, atol=0.01, rtol=0)


def test_nothing_is_kept_where_it_cannot_or_should_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards `packed_cache`, full disks and homeless users, who are told."""
    assert load(folder, quantize="int8", packed_cache=False).quantized_summary.file is None
    assert not kept(folder)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(loading, "save_packed", full)
    assert "could not be kept" in str(load(folder, quantize="int8").quantized_summary)


def test_what_cannot_be_quantised_is_refused(folder: Path) -> None:
    """Guards messages that name the way out, before anything is loaded."""
    with pytest.raises(UsageError, match="int8 or int4"):
        load(folder, quantize="int5")
    with pytest.raises(UsageError, match="float32 or bfloat16"):
        load(folder, quantize="int8", dtype="float16")
    with pytest.raises(UsageError, match="on CPUs"):
        load(folder, quantize="int8", device="cuda")
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3, 5] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UnsupportedError, match=r"layers\.1\.mlp\.up_proj\.weight .* not finite"):
        load(folder, quantize="int8")


def save_gptq(folder: Path, *, shuffled: bool = False) -> dict[str, Tensor]:
    """Rewrite a checkpoint in GPTQ's layout with 4 bits; return the matrices that it now stands for."""
    torch.manual_seed(0)
    tensors, meant = load_file(folder / "model.safetensors"), {}
    for name in [each for each in tensors if each.endswith(("_proj.weight", "w1.weight", "w2.weight", "w3.weight"))]:
        outs, k = tensors.pop(name).shape
        base, groups = name.removesuffix(".weight"), -(-k // 16)
        values = torch.randint(0, 16, (k, outs), dtype=torch.int32)
        scales = (torch.rand(groups, outs) * 0.02).half()
        index = torch.arange(k, dtype=torch.int32) // 16
        index = index[torch.randperm(k)] if shuffled else index
        shifts = torch.arange(0, 32, 4, dtype=torch.int32)
        tensors[f"{base}.qweight"] = (values.reshape(-1, 8, outs) << shifts[:, None]).sum(dim=1).int()
        tensors[f"{base}.qzeros"] = torch.full((groups, outs // 8), 0x77777777, dtype=torch.int32)
        tensors[f"{base}.scales"], tensors[f"{base}.g_idx"] = scales, index
        meant[name] = ((values - 8).float() * scales.float()[index.long()]).t().contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": shuffled}
    (folder / "config.json").write_text(json.dumps(config))
    return meant


@pytest.mark.parametrize("shuffled", [False, True])
def test_quantised_checkpoints_are_read_packed(folder: Path, shuffled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards models of GPTQ files without GPTQ's package: the same text as from the matrices that they stand for."""
    plain = load(folder)
    for name, matrix in save_gptq(folder, shuffled=shuffled).items():
        plain.get_parameter(name).data = matrix
    first = load(folder)
    assert [each.quantized.bits for _, each in quantized_modules(first)] == [4] * 21
    assert not hasattr(first.config, "quantization_config")
    torch.testing.assert_close(logits(first), logits(plain), atol=0.05, rtol=0.05)
    monkeypatch.setattr(loading, "read_checkpoint", None)
    assert torch.equal(logits(load(folder)), logits(first))
    with pytest.raises(UnsupportedError, match="quantised already"):
        load(folder, quantize="int8")


def test_experts_that_are_packed_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards mixtures in GPTQ's layout, under the names that Mixtral's checkpoints have for their modules."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    deep_model("mixtral").to(torch.bfloat16).save_pretrained(tmp_path / "model")
    meant = save_gptq(tmp_path / "model")
    assert "model.layers.0.block_sparse_moe.experts.3.w2.weight" in meant
    found = load(tmp_path / "model")
    for projection, name in (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")):
        each = [meant[f"model.layers.1.block_sparse_moe.experts.{number}.{name}.weight"] for number in range(4)]
        assert torch.equal(found.model.layers[1].mlp.experts.matrices[projection].dequantize(), torch.cat(each))
    assert torch.isfinite(logits(found)).all()


def test_missing_weights_are_named(folder: Path) -> None:
    """Guards against models that are half made of chance."""
    save_gptq(folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelNotFoundError, match=r"has no model\.norm\.weight"):
        load(folder)
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="cannot be read"):
        load(folder)


def test_experts_are_quantised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the experts of a mixture, which are most of its weights, and its router, which stays as it is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    deep_model("mixtral").to(torch.bfloat16).save_pretrained(tmp_path / "model")
    first, plain = load(tmp_path / "model", quantize="int8"), load(tmp_path / "model")
    packed = [name for name, _ in quantized_modules(first)]
    assert len(packed) == 3 * 5 + 2
    assert "model.layers.0.mlp.experts" in packed
    ours, theirs = (each.model.layers[0].mlp for each in (first, plain))
    for name, matrix in expert_weights(theirs.experts).items():
        torch.testing.assert_close(ours.experts.matrices[name].dequantize(), matrix.detach(), atol=0.02, rtol=0)
    assert torch.equal(ours.gate.weight, theirs.gate.weight)
    assert torch.equal(logits(load(tmp_path / "model", quantize="int8")), logits(first))


def test_experts_in_mxfp4_are_read_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards GPT-OSS: codes, exponents, and rows that alternate between gate and up."""
    from transformers import GptOssConfig, GptOssForCausalLM

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 61}
    plain = GptOssForCausalLM(GptOssConfig(**shape, **heads, num_hidden_layers=2, pad_token_id=0)).eval()
    meaning = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    tensors = {name: each.detach().clone() for name, each in plain.state_dict().items()}
    for layer in range(2):
        for name, parameter in plain.model.layers[layer].mlp.experts.named_parameters():
            base = f"model.layers.{layer}.mlp.experts.{name}"
            if name.endswith("bias"):
                continue
            del tensors[base]
            count, k, outs = parameter.shape
            codes = torch.randint(0, 16, (count, outs, k // 32, 32), dtype=torch.uint8)
            scales = torch.randint(118, 123, (count, outs, k // 32), dtype=torch.uint8)
            tensors[f"{base}_blocks"], tensors[f"{base}_scales"] = codes[..., ::2] | codes[..., 1::2] << 4, scales
            wide = meaning[codes.long()] * torch.exp2(scales.float() - 127)[..., None]
            parameter.data = wide.reshape(count, outs, k).transpose(1, 2).contiguous()
    plain.config.save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    found = load(tmp_path / "model", activations="float")
    assert len([*quantized_modules(found)]) == 2
    torch.testing.assert_close(logits(found), logits(plain), atol=1e-4, rtol=1e-4)
