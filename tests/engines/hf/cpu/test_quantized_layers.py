"""Fused layers of quantised weights: the numbers of product by product, for any number of rows, to the last bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models import deep_model
from pairwise import paired
from quantizing import quantized_model
from speculant.core.errors import UnsupportedError
from speculant.engines.hf.cache import usable_cache
from speculant.engines.hf.cpu import accelerate
from speculant.engines.hf.cpu.accelerate import CpuAcceleration, prepare_model
from speculant.engines.hf.cpu.build import BuildError
from speculant.engines.hf.cpu.kernel_table import KernelTable
from speculant.engines.hf.probe.model_state import digest_of, state_of
from speculant.engines.hf.quantized.products import Activations

pytestmark = pytest.mark.usefixtures("compiled")
FUSED = ["llama", "mistral", "qwen2", "qwen3"]
IDS = torch.randint(3, 61, (2, 300), generator=torch.Generator().manual_seed(5))


def model_of(
    name: str,
    *,
    bits: int = 8,
    activations: Activations = "int8",
    but: tuple[str, ...] = (),
    dtype: torch.dtype = torch.float32,
    **changes: Any,
) -> Any:
    """Return a quantised model whose norms and biases are not what they are in the beginning, ones and zeros."""
    model = deep_model(name, **changes)
    torch.manual_seed(3)
    for each, weight in model.named_parameters():
        if "norm" in each or "bias" in each:
            nn.init.uniform_(weight, 0.3, 1.7)
    return quantized_model(model, bits=bits, activations=activations, but=but).to(dtype)


@torch.inference_mode()
def output(model: Any, prepared: CpuAcceleration, rows: int, *, batch: int = 1, cached: int = 60) -> Tensor:
    """Return the hidden states of so many rows behind cached ones."""
    cache, run = usable_cache(None), prepared.model_for(model, rows).model
    if cached:
        run(IDS[:batch, :cached], past_key_values=cache)
    hidden: Tensor = run(IDS[:batch, cached : cached + rows], past_key_values=cache).last_hidden_state
    return hidden


@pytest.mark.parametrize(
    ("name", "dtype", "bits", "activations"),
    paired(FUSED, [torch.float32, torch.bfloat16], [(8, "int8"), (4, "int8"), (8, "float")]),
)
def test_a_layer_in_one_call_is_the_layer_product_by_product(
    name: str, dtype: torch.dtype, bits: int, activations: Activations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards products that share their rounded inputs, biases, and where numbers are rounded: not a bit differs."""
    model = model_of(name, bits=bits, activations=activations, dtype=dtype)
    prepared = prepare_model(model, None)
    assert len(prepared.layers) == 3
    found = output(model, prepared, 7, batch=2)
    monkeypatch.setattr(KernelTable, "one_call", lambda *_: None)
    monkeypatch.setattr(KernelTable, "has_times", lambda *_: True)
    assert torch.equal(output(model, prepared, 7, batch=2), found)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_does_not_depend_on_those_beside_it(name: str, dtype: torch.dtype) -> None:
    """Guards that drafts, prompts in one pass and in several, and batches change no bit of a row."""
    model = model_of(name, dtype=dtype)
    prepared = prepare_model(model, None)
    whole = output(model, prepared, 230)
    for rows in (1, 2, 3, 9, 33, 130):
        assert torch.equal(output(model, prepared, rows), whole[:, :rows])
    assert torch.equal(output(model, prepared, 230, batch=2)[:1], whole)
    assert torch.equal(output(model, prepared, 80, cached=0)[:, 60:], whole[:, :20])


@pytest.mark.parametrize("name", FUSED)
def test_a_pass_is_that_of_the_modules(name: str) -> None:
    """Guards the whole against the model's own code: inputs that are kept leave rounding errors alone."""
    model = model_of(name, activations="float")
    with torch.inference_mode():
        expected = model.model(IDS[:1, :68]).last_hidden_state[:, 60:]
    for fast in (None, False):
        prepared = prepare_model(model, fast)
        assert bool(prepared.layers) == (fast is None)
        torch.testing.assert_close(output(model, prepared, 8), expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("but", [("o_proj",), ("q_proj", "down_proj"), ("k_proj", "lm_head"), ("gate_proj", "embed")])
def test_float_and_quantised_products_stand_side_by_side(but: tuple[str, ...]) -> None:
    """Guards files in which some matrices stay float: layers are fused all the same, and exact."""
    model = model_of("qwen2", activations="float", but=but)
    prepared = prepare_model(model, None)
    assert len(prepared.layers) == 3
    with torch.inference_mode():
        expected = model.model(IDS[:1, :68]).last_hidden_state[:, 60:]
    found = output(model, prepared, 8)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)
    for rows in (1, 3):
        assert torch.equal(output(model, prepared, rows), found[:, :rows])


@pytest.mark.parametrize("name", ["gemma3", "phi3", "mixtral", "gpt_neox"])
def test_other_families_run_module_by_module(name: str) -> None:
    """Guards families without fused layers: their products and their attention are ours."""
    model = model_of(name, activations="float")
    prepared = prepare_model(model, None)
    assert not prepared.layers
    base = model.base_model
    with torch.inference_mode():
        expected = base(IDS[:1, :40]).last_hidden_state
        found = prepared.model_for(model, 40).base_model(IDS[:1, :40]).last_hidden_state
    torch.testing.assert_close(found, expected, atol=5e-5, rtol=5e-5)
    assert not prepared.notes
    [note] = prepare_model(model_of(name), None).notes  # of inputs that are rounded
    assert "near-ties can flip" in note


def test_a_changed_matrix_is_noticed() -> None:
    """Guards checks of a model between requests: a packed tensor counts as a weight does."""
    model = model_of("llama")
    prepared, state, digest = prepare_model(model, None), state_of(model), digest_of(model)
    before = output(model, prepared, 4)
    assert (state_of(model), digest_of(model)) == (state, digest)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.packed_scales.mul_(-1)
    assert state_of(model) != state
    assert digest_of(model) != digest
    assert not torch.equal(output(model, prepared, 4), before)


def test_costs_are_kept_by_layout() -> None:
    """Guards stored costs of passes: the same config at other bits is another model."""
    model = deep_model("llama")
    settings = {str(prepare_model(each, None).settings()) for each in (model, *map(_quantized, (4, 8)))}
    assert len(settings) == 3


def _quantized(bits: int) -> Any:
    return quantized_model(deep_model("llama"), bits=bits)


def test_without_a_compiler_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards machines on which the code cannot be built: nothing else can multiply by these weights."""

    def fail() -> None:
        raise BuildError("there is no C++ compiler g++")

    monkeypatch.setattr(accelerate, "native", fail)
    with pytest.raises(UnsupportedError, match="compiled code only: there is no C"):
        prepare_model(model_of("llama"), False)
