"""A model from a GGUF file is the model that was written, and what llama.cpp computes with the same file."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gguf_families import FAMILIES, VOCABULARY, family_file, family_model, write_family
from ggufs import needs_llamacpp
from pairwise import in_turn
from speculant.core.errors import ModelError, OutOfMemoryError, SpeculantError, UnsupportedError
from speculant.engines.hf.quantized.experts import QuantizedExperts
from speculant.engines.hf.quantized.gguf.architectures import ARCHITECTURES
from speculant.engines.hf.quantized.gguf.file import open_gguf
from speculant.engines.hf.quantized.gguf.loading import plan_model
from speculant.engines.hf.quantized.gguf.model import read_weights
from speculant.engines.hf.quantized.gguf.plan import count_kinds, plan_gguf
from speculant.engines.hf.quantized.modules import quantized_modules

EXPERTS = ("mixtral", "gpt-oss")
LENGTH = 40  # beyond the windows and some rotary limits
# Gemma's activation stands in a table of float16 numbers in llama.cpp, which also rounds YaRN's limits for gpt-oss.
TOLERANCE = {"gemma2": 5e-3, "gemma3": 5e-3, "gpt-oss": 1e-2}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_is_the_one_that_was_written(family: str) -> None:
    """Config, names, row orders, norms, heads and rotary embeddings: the logits of transformers."""
    model = _load(family_file(family))
    with torch.inference_mode():
        found, expected = model(_ids()).logits[0], family_model(family)(_ids()).logits[0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert type(model) is type(family_model(family))


@pytest.mark.peers
@pytest.mark.parametrize("family", FAMILIES)
def test_the_logits_are_those_of_llama_cpp(family: str) -> None:
    """An independent reader of the same file agrees, in float32."""
    model = _load(family_file(family))
    with torch.inference_mode():
        found = model(_ids()).logits[0]
    torch.testing.assert_close(found, _llamacpp_logits(family_file(family)), atol=TOLERANCE.get(family, 1e-4), rtol=0)


@pytest.mark.peers
@pytest.mark.parametrize(
    ("family", "kind"),
    in_turn(["llama3", "gemma3", "phi3", "mixtral", "gpt-oss"], ["q8_0", "q4_0", "q4_k", "q6_k"], whole=1),
)
def test_quantised_files(family: str, kind: str) -> None:
    """Packed matrices compute what their dequantised values do, and llama.cpp's logits but for rounded inputs."""
    model = _load(family_file(family, kind), activations="float")
    held = dict(quantized_modules(model))
    assert len(held) > 10
    with torch.inference_mode():
        found = model(_ids()).logits[0]
        rounded = _load(family_file(family, kind))(_ids()).logits[0]
        wide = _expanded(model)(_ids()).logits[0]
    torch.testing.assert_close(found, wide, atol=1e-3, rtol=0)
    spread = 0.3 * float(wide.std())
    for other in (rounded, _llamacpp_logits(family_file(family, kind))):
        apart = (other - wide).abs().amax(-1)
        # Rounding may change which experts a row chooses, and so its logits and those behind it.
        assert float(apart.max() if family not in EXPERTS else apart.median()) < spread


def test_memory_is_stated_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a model takes is known before it is read, and too little memory is refused with the way out."""
    plan = plan_gguf(open_gguf(family_file("qwen2")))
    read = [0]
    model = read_weights(plan, advance=lambda count: read.append(count))
    assert sum(read) == plan.read_bytes == plan.float_bytes
    assert plan.float_bytes == 4 * sum(parameter.numel() for parameter in model.parameters())
    assert "for other weights" in plan.describe_memory()
    monkeypatch.setattr("speculant.engines.hf.quantized.gguf.plan.available_memory", lambda: 1000)
    with pytest.raises(OutOfMemoryError, match=r"0\.0 MB are free\. Use a smaller"):
        read_weights(plan_gguf(open_gguf(family_file("qwen2"))))


def test_bfloat16_halves_the_memory() -> None:
    """Weights, activations and cache in bfloat16 where that is asked for."""
    narrow = plan_gguf(open_gguf(family_file("qwen2")), dtype=torch.bfloat16)
    assert 2 * narrow.cache_bytes == plan_gguf(open_gguf(family_file("qwen2"))).cache_bytes
    model = read_weights(narrow)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert count_kinds(narrow) == {"F32": sum(parameter.numel() for parameter in model.parameters())}


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        ("blk.1.ffn_down.weight", r"lacks the tensor 'blk\.1\.ffn_down\.weight'"),
        ("token_embd.weight", "no embedding 'token_embd.weight'"),
        ("output_norm.weight", r"lacks the tensor 'output_norm\.weight'"),
    ],
)
def test_missing_tensors_are_named(tensor: str, said: str, tmp_path: Path) -> None:
    """A file without a tensor is refused before anything is read."""
    write_family(family_model("qwen3"), ARCHITECTURES["qwen3"], tmp_path / "m.gguf", leave_out=tensor)
    with pytest.raises(ModelError, match=said):
        plan_gguf(open_gguf(tmp_path / "m.gguf"))


@pytest.mark.parametrize(
    ("extra", "error", "said"),
    [
        (
            {"blk.0.attn_q.weight": np.zeros((512, 128), np.float32)},
            ModelError,
            r"'blk\.0\.attn_q\.weight' .* \[512, 1",
        ),
        (
            {"blk.0.attn_q.bias": np.zeros(512, np.float32)},
            UnsupportedError,
            r"do not support the tensor 'blk\.0\.attn_q",
        ),
        (
            {"blk.9.attn_q.weight": np.zeros((512, 256), np.float32)},
            UnsupportedError,
            "do not support the tensor 'blk.9",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    extra: dict[str, Any], error: type[SpeculantError], said: str, tmp_path: Path
) -> None:
    """Wrong shapes, and tensors of layers that the model does not have."""
    write_family(family_model("qwen3"), ARCHITECTURES["qwen3"], tmp_path / "m.gguf", extra=extra)
    with pytest.raises(error, match=said):
        plan_gguf(open_gguf(tmp_path / "m.gguf"))


def test_other_tensors_are_named_in_a_note(tmp_path: Path) -> None:
    """What no layer of the model could use is ignored, and said to be."""
    extra = {"mm.vision.weight": np.zeros((32, 32), np.float32)}
    write_family(family_model("qwen3"), ARCHITECTURES["qwen3"], tmp_path / "m.gguf", extra=extra)
    planned = plan_model(tmp_path / "m.gguf")
    assert planned.plan.ignored == ("mm.vision.weight",)
    assert "does not use: mm.vision.weight." in planned.notes[0]


@pytest.mark.parametrize("family", ["llama3", pytest.param("qwen2", marks=pytest.mark.slow)])
def test_damaged_files_raise_no_other_errors(family: str, tmp_path: Path) -> None:
    """Random bytes in the header and in the tensors, and files that end early: an error of ours, or a model."""
    intact, random = family_file(family).read_bytes(), np.random.default_rng(5)
    header = min(tensor.start for tensor in open_gguf(family_file(family)).tensors.values())
    failed = 0
    for number in range(60):
        damaged = bytearray(intact)
        for place in random.integers(header if number % 3 else len(intact), size=1 + number % 4):
            damaged[place] = random.integers(256)
        if number % 5 == 0:
            damaged = damaged[: random.integers(len(intact))]
        (tmp_path / "m.gguf").write_bytes(damaged)
        try:
            plan_model(tmp_path / "m.gguf").load()
        except SpeculantError:
            failed += 1
    assert failed > 20


def test_a_model_outlives_its_file(tmp_path: Path) -> None:
    """Matrices may stay mapped; the file may be removed."""
    path = tmp_path / "m.gguf"
    shutil.copy(family_file("qwen2"), path)
    model = _load(path)
    path.unlink()
    with torch.inference_mode():
        assert torch.isfinite(model(_ids()).logits).all()


def _load(path: Path, **options: Any) -> Any:
    return read_weights(plan_gguf(open_gguf(path)), **options)


def _ids() -> Tensor:
    return torch.randint(3, VOCABULARY, (1, LENGTH), generator=torch.Generator().manual_seed(1))


def _expanded(model: Any) -> Any:
    """Return a model with the dequantised values of a quantised one in plain modules."""
    from transformers import AutoModelForCausalLM

    wide = AutoModelForCausalLM.from_config(model.config).eval()
    with torch.no_grad():
        for name, module in quantized_modules(model):
            if isinstance(module, QuantizedExperts):
                _expand_experts(wide.get_submodule(name), module)
            else:
                wide.get_parameter(f"{name}.weight").copy_(module.dequantize())
        for name, parameter in model.named_parameters():
            wide.get_parameter(name.replace(".source.", ".")).copy_(parameter)
        for name, buffer in model.named_buffers():
            if "inv_freq" in name:
                wide.get_buffer(name).copy_(buffer)
    return wide


def _expand_experts(wide: Any, packed: QuantizedExperts) -> None:
    """Fill the experts of a class with dequantised values, in the order of its own rows and axes."""
    given = {
        name: matrix.dequantize().unflatten(0, (len(wide.down_proj), -1)) for name, matrix in packed.matrices.items()
    }
    gate, up, down = (given[f"{name}_proj"] for name in ("gate", "up", "down"))
    if wide.is_transposed:  # as gpt-oss has them
        wide.gate_up_proj[..., ::2], wide.gate_up_proj[..., 1::2] = gate.transpose(1, 2), up.transpose(1, 2)
        wide.down_proj.copy_(down.transpose(1, 2))
    else:
        wide.gate_up_proj.copy_(torch.cat((gate, up), dim=1))
        wide.down_proj.copy_(down)


def _llamacpp_logits(path: Path) -> Tensor:
    """Return the logits of all positions by llama-cpp-python's own interface, with a cache of float32."""
    needs_llamacpp()
    from llama_cpp import Llama

    model = Llama(str(path), logits_all=True, verbose=False, n_ctx=64, n_threads=1, type_k=0, type_v=0)
    model.eval(_ids()[0].tolist())
    return torch.from_numpy(model.scores[:LENGTH].copy())
