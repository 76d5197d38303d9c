"""Packed weights: never used for a weight that has changed, and refused where memory is short."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from models import tiny_model
from speculant import Speculator
from speculant.engines.hf.cpu import accelerate
from speculant.engines.hf.cpu.kernel_table import ROW_COUNTS
from speculant.engines.hf.cpu.packing import PackedWeight, memory_allows
from speculant.engines.hf.cpu.products import can_pack

pytestmark = [
    pytest.mark.usefixtures("compiled"),
    pytest.mark.skipif(not can_pack(torch.float32), reason="oneDNN packs no weights here"),
]
IDS = torch.tensor([[5, 9, 14, 3, 8, 5, 9, 14, 3, 8, 5, 9]])
SECONDS = {"torch": 1.0, "compiled": 1.0, "packed": 0.1}


def test_a_changed_weight_is_not_the_packed_one(compiled: Any) -> None:
    """Guards every way to change a weight: noticed at once, or at the latest by `refresh`."""
    weight = nn.Parameter(torch.randn(64, 64))
    packed = PackedWeight(compiled, weight)
    assert packed.of(weight) is not None
    with torch.no_grad():
        weight[3, 5] += 1
    assert packed.of(weight) is None
    packed.refresh(weight)
    first = packed.of(weight)
    assert first is not None
    packed.refresh(weight)
    assert packed.of(weight) is first
    weight.data.mul_(2)  # past the version counter
    assert packed.of(weight) is None
    packed.refresh(weight)
    weight.data[1, 1] += 1  # past the sample, too
    packed.refresh(weight)
    assert packed.of(weight) is not first
    assert packed.of(nn.Parameter(weight.detach().clone())) is None


@pytest.fixture
def packing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that packed weights were measured to be faster for every shape."""

    def measured(modules: Any, products: Any, *, minimum: int) -> Any:
        shapes = {tuple(module.weight.shape) for module in modules}
        return {shape: {kernel: [each] * len(ROW_COUNTS) for kernel, each in SECONDS.items()} for shape in shapes}

    monkeypatch.setattr(accelerate, "kernel_times", measured)


@pytest.mark.parametrize("name", ["qwen2", "gemma3"])
def test_text_and_weights_are_those_of_the_model(name: str, packing: None) -> None:
    """Guards losslessness with packed weights, the model's own `generate` and `state_dict`, and changes in between."""
    model = tiny_model(name)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    speculator = Speculator.from_transformers(model, fast=True, nodes=12)
    assert any("packed copies" in note for note in speculator.fast.notes)
    for change in (False, True):
        if change:
            model.lm_head.weight.data[7, 3] += 2
            model.model.layers[0].mlp.up_proj.weight.data[1] *= -3
        expected = model.generate(IDS, max_new_tokens=40, do_sample=False)[0, IDS.shape[1] :].tolist()
        assert speculator.generate(IDS, max_new_tokens=40, temperature=0).ids == expected
        if not change:
            assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_short_memory_is_a_note(packing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards machines on which two copies do not fit: other kernels, and one line that says so."""
    assert memory_allows([]) == (True, 0)
    monkeypatch.setattr("speculant.engines.hf.cpu.packing.available_memory", lambda: 100)
    prepared = accelerate.prepare_model(tiny_model("llama"), True)
    assert all(linear.packed is None for linear in prepared.linears)
    assert "more than half" in prepared.notes[0] or "over half" in prepared.notes[0]
