"""Fused layers: they return what the layers return, and leave alone a layer that is not what they know."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from fused_layers import IDS, agreed, model_of, output
from pairwise import paired
from speculant.core.sublayers import Sublayers
from speculant.engines.hf.cache import usable_cache
from speculant.engines.hf.cpu import decoder_layer
from speculant.engines.hf.cpu.accelerate import CpuAcceleration, prepare_model
from speculant.engines.hf.cpu.pass_plan import find_fused_layers
from speculant.engines.hf.cpu.shadow import Shadows
from speculant.engines.hf.engine import HFEngine

pytestmark = pytest.mark.usefixtures("compiled")


@pytest.mark.parametrize(
    ("name", "rows", "batch", "own"),
    paired(["llama", "mistral", "qwen2", "qwen3"], [(1, 1), (2, 1), (8, 1), (1, 2), (7, 2), (97, 1)], [True, False]),
)
def test_a_pass_is_that_of_the_layers_themselves(name: str, rows: int, batch: int, own: bool) -> None:
    """Guards norms, biases, rotated heads and both residuals; one row, many, and more than the code does."""
    model = model_of(name)
    assert len(prepare_model(model, True).layers) == 3
    found, expected = output(model, rows=rows, batch=batch, own=own), output(model, rows=rows, batch=batch, fast=False)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("changes", [{"attention_bias": True}, {"mlp_bias": True}, {"num_key_value_heads": 4}])
def test_every_bias_counts(changes: dict[str, Any]) -> None:
    """Guards layers with what most of their family lack."""
    model = model_of("llama", **changes)
    torch.testing.assert_close(output(model), output(model, fast=False), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(
    ("name", "rows", "batch", "own"),
    paired(["llama", "mistral", "qwen2", "qwen3"], [(1, 1), (8, 1), (30, 1), (7, 2)], [True, False]),
)
def test_bfloat16_is_rounded_where_the_layers_round(name: str, rows: int, batch: int, own: bool) -> None:
    """Guards models as most are published: around torch's attention nearly every number is the same.

    Torch rounds probabilities too, so with our attention the whole is held against the same model in float32.
    """
    model, given = model_of(name).bfloat16(), {"rows": rows, "batch": batch, "own": own}
    prepared = prepare_model(model, True)
    assert fused(prepared) == 3
    theirs, found = output(model, fast=False, **given), output(model, prepared=prepared, **given)
    around = output(model, prepared=with_torch_attention(model, prepared), **given)
    assert around.dtype is torch.bfloat16
    assert (around == theirs).float().mean() > 0.95  # differs by processor: torch has several products for bfloat16
    exact = output(model.float(), fast=False, **given)
    assert (found - exact).abs().mean() < 2 * (theirs - exact).abs().mean()


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("rows", [1, 8, 70])
def test_sublayers_alone(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards layers of which one sublayer runs: compiled for few rows, and else as on views of the model."""
    model, run = model_of(name), Sublayers((0, 2), (1, 2))
    if rows < 70:
        monkeypatch.setattr(decoder_layer, "split_layer", None)  # what layers that are not compiled would call
    found = list[Tensor]()
    for acceleration in (prepare_model(model, True), None):
        cache = HFEngine(model, acceleration=acceleration).open(IDS[:1])
        cache.prefill()
        tokens = IDS.flatten().repeat(5)[:rows].numpy().astype(np.int32)
        found.append(cache.forward(tokens, np.arange(-1, rows - 1, dtype=np.int32), layers=run).logits)
        assert [layer.get_seq_length() for layer in cache.cache.layers] == [8 + rows, 8, 8 + rows]
    torch.testing.assert_close(*found, atol=2e-4, rtol=2e-4)


def with_torch_attention(model: Any, prepared: CpuAcceleration) -> CpuAcceleration:
    """Return the preparation without our attention."""
    assert prepared.table is not None
    layers = find_fused_layers(model, prepared.table, None, minimum=0)
    return replace(
        prepared, attention=None, layers=layers, shadows=Shadows(model, {each.module: each for each in layers})
    )


def test_a_model_may_change_its_type() -> None:
    """Guards `model.to(...)` after it was prepared, of the whole and of a part, which leaves its layer alone."""
    model = model_of("qwen2")
    prepared = prepare_model(model, True)
    model.bfloat16()
    assert fused(prepared) == 3
    assert torch.equal(output(model, prepared=prepared), output(model))
    model.model.layers[1].input_layernorm.float()
    assert fused(prepared) == 2
    model.float()
    agreed(model, prepared)


@torch.inference_mode()
def test_a_cache_of_another_type_is_taken_over() -> None:
    """Guards conversations that go on after `model.to(...)`: rows are never read as what they are not."""
    answers = []
    for fast in (True, False):
        model, cache = model_of("qwen2"), usable_cache(None)
        model(IDS[:1, :4], past_key_values=cache)
        run = prepare_model(model.bfloat16(), fast).model_for(model, 8)
        answers.append(run.model(IDS[:1], past_key_values=cache).last_hidden_state)
    torch.testing.assert_close(*answers, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("own", [True, False])
def test_a_row_does_not_depend_on_those_beside_it(own: bool, dtype: torch.dtype) -> None:
    """Guards that drafts change nothing of the target's logits, not to the last bit."""
    model = model_of("qwen2").to(dtype)
    whole = output(model, rows=20, own=own)
    for rows in (1, 2, 3, 9):
        assert torch.equal(output(model, rows=rows, own=own), whole[:, :rows])


def test_a_full_cache_grows() -> None:
    """Guards the rows that no longer fit into the buffers, and those behind them."""
    model = model_of("qwen2")
    run = prepare_model(model, True).model_for(model, 60)
    with torch.inference_mode():
        whole, parts = (usable_cache(None) for _ in range(2))
        ids = IDS[:1].repeat(1, 30)
        expected = run.model(ids, past_key_values=whole).last_hidden_state
        pieces = [run.model(piece, past_key_values=parts).last_hidden_state for piece in ids.split(60, dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), expected, atol=2e-5, rtol=2e-5)


def test_large_numbers_stay_what_they_are() -> None:
    """Guards the exponential far from zero."""
    model = model_of("llama")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate_proj.weight.mul_(300)
    found, expected = output(model), output(model, fast=False)
    assert found.isfinite().all()
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)


def fused(prepared: CpuAcceleration) -> int:
    """Return how many layers a pass fuses."""
    return sum(layer.ready() is not None for layer in prepared.layers)


def test_hooks_run_as_in_the_model_itself() -> None:
    """Guards tools with hooks on parts of a model, or on all modules: their layers are not fused."""
    model, seen = model_of("llama"), []
    prepared = prepare_model(model, True)

    def listen(module: nn.Module, *_: Any) -> None:
        seen.append(type(module).__name__)

    handle = model.model.layers[1].mlp.register_forward_hook(listen)
    assert fused(prepared) == 2
    output(model, prepared=prepared)
    assert seen == 2 * ["LlamaMLP"]
    handle.remove()
    assert fused(prepared) == 3
    seen.clear()
    handle = nn.modules.module.register_module_forward_hook(listen)
    output(model, prepared=prepared)
    handle.remove()
    assert seen.count("LlamaMLP") == 6


def test_hidden_states_asked_for_once_change_nothing() -> None:
    """Guards the hooks that transformers leaves behind: models stay as fast as they were."""
    model = model_of("llama")
    prepared = prepare_model(model, True)
    assert len(model(IDS, output_hidden_states=True).hidden_states) == 4
    assert fused(prepared) == 3
    with torch.inference_mode():
        run = prepared.model_for(model, 8)
        assert len(run(IDS[:1], output_hidden_states=True).hidden_states) == 4


CHANGES = ["forward", "linear", "norm", "shape", "activation", "class", "layer", "sparse", "attribute"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("case", CHANGES)
def test_a_changed_part_leaves_its_layer_alone(case: str, when: str) -> None:
    """Guards offloading, adapters and surgery, before the model is prepared and after it."""
    model = model_of("llama", num_key_value_heads=4)
    prepared = prepare_model(model, True)
    change(model.model.layers[0], case)
    if when == "before":
        prepared = prepare_model(model, True)
    assert fused(prepared) == 2
    if case != "sparse":  # which layers themselves cannot multiply with
        agreed(model, prepared)


def change(layer: Any, case: str) -> None:
    weight = layer.self_attn.k_proj.weight
    if case == "forward":
        layer.self_attn.forward = lambda *a, **k: type(layer.self_attn).forward(layer.self_attn, *a, **k)
    elif case == "linear":
        layer.mlp.up_proj = nn.Sequential(layer.mlp.up_proj)
    elif case == "norm":
        layer.input_layernorm = nn.RMSNorm(32)
    elif case == "shape":  # at the same address
        weight.data = weight.data.T
    elif case == "activation":
        layer.mlp.act_fn = nn.GELU()
    elif case == "class":
        layer.self_attn.__class__ = type("Steered", (type(layer.self_attn),), {})
    elif case == "layer":
        kind = type(layer)
        twice = {"forward": lambda self, x, **options: 2 * kind.forward(self, x, **options)}
        layer.__class__ = type("Doubled", (kind,), twice)
    elif case == "sparse":
        layer.self_attn.k_proj.weight = nn.Parameter(weight.data.to_sparse())
    elif case == "attribute":
        del layer.self_attn.k_proj.weight
        layer.self_attn.k_proj.weight = weight.data


@pytest.mark.parametrize("name", ["mlp", "linear", "rotary", "part", "eager"])
def test_patched_code_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards libraries that put their own code into transformers', other attention, and releases to come."""
    model = model_of("llama", **({"attention": "eager"} if name == "eager" else {}))
    earlier, layer = prepare_model(model, True), model.model.layers[0]
    if name == "mlp":
        monkeypatch.setattr(type(layer.mlp), "forward", lambda _, x: x)
    elif name == "linear":
        monkeypatch.setattr(nn.Linear, "forward", lambda _, x: x)
    elif name == "rotary":
        monkeypatch.setattr(sys.modules[type(layer).__module__], "apply_rotary_pos_emb", lambda q, k, *_: (k, q))
    elif name == "part":
        for each in model.model.layers:
            each.self_attn.sink = nn.Identity()
    assert fused(prepare_model(model, True)) == 0
    assert name == "part" or fused(earlier) == 0


def test_what_is_looked_up_counts_at_once() -> None:
    """Guards training and offloading: weights, biases and norms that change between passes, or as one begins."""
    model = model_of("qwen2")
    prepared = prepare_model(model, True)
    layers = model.model.layers
    with torch.no_grad():
        layers[0].mlp.up_proj.weight = nn.Parameter(layers[0].mlp.up_proj.weight.flip(0))
        layers[1].self_attn.q_proj.bias.data = torch.ones(32)
        layers[2].input_layernorm.weight.mul_(0.5)
        layers[2].post_attention_layernorm.variance_epsilon = 0.3
    agreed(model, prepared)
    new = torch.randn(48, 32)
    hook = model.model.register_forward_pre_hook(lambda *_: setattr(layers[0].mlp.up_proj.weight, "data", new.clone()))
    agreed(model, prepared)
    hook.remove()
    assert fused(prepared) == 3


def test_an_attention_of_the_users_gets_the_usual_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards functions that read the window; and that output of another type is refused, never misread."""
    model, seen = model_of("mistral"), []

    def own(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> Any:
        seen.append({name: options[name] for name in ("dropout", "scaling", "sliding_window")})
        answer, _ = sdpa_attention_forward(module, query, key, value, mask, **options)
        return answer.to(wanted), None

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._local_mapping, "sdpa", own)
    wanted = torch.float32
    prepared = prepare_model(model, True)
    agreed(model, prepared)
    assert len({str(each) for each in seen}) == 1
    wanted = torch.float64
    with pytest.raises(RuntimeError, match=r"returned torch\.float64"), torch.inference_mode():
        prepared.model_for(model, 8)(IDS[:1])


def test_training_and_gradients_are_left_alone() -> None:
    """Guards who trains between requests: a fused layer would give no gradient."""
    model = model_of("llama")
    prepared = prepare_model(model, True)
    prepared.model_for(model, 8)(IDS[:1]).logits.sum().backward()
    assert model.model.layers[0].mlp.up_proj.weight.grad is not None


def test_layers_behind_a_changed_output_compute_anew() -> None:
    """Guards layers that are computed ahead: what a hook makes of an output is what the next layer reads."""
    model = model_of("llama")
    prepared = prepare_model(model, True)
    before = output(model, prepared=prepared)
    handle = model.model.layers[0].register_forward_hook(lambda _module, _given, found: found * 1.5)
    agreed(model, prepared)
    handle.remove()
    assert torch.equal(output(model, prepared=prepared), before)


@torch.inference_mode()
def test_layers_that_a_pass_leaves_out_append_nothing() -> None:
    """Guards rows that were written ahead: a layer that is not called holds the rows that it held."""
    model = model_of("llama")
    prepared = prepare_model(model, True)
    run, cache = prepared.model_for(model, 8), usable_cache(None)
    run.model(IDS[:1, :4], past_key_values=cache)

    def stop(_module: nn.Module, _given: Any) -> None:
        raise InterruptedError

    handle = model.model.layers[1].register_forward_pre_hook(stop)
    with pytest.raises(InterruptedError):
        run.model(IDS[:1], past_key_values=cache)
    handle.remove()
    assert [layer.keys.shape[2] for layer in cache.layers] == [12, 4, 4]
