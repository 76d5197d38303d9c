"""All layers of a model in one call: the same bits as layer by layer, and nobody can tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fused_layers import IDS, agreed, model_of, output
from speculant.core.engine import RequestedOutputs
from speculant.engines.hf.cpu import layer_stack
from speculant.engines.hf.cpu.accelerate import prepare_model
from speculant.engines.hf.engine import HFEngine

pytestmark = pytest.mark.usefixtures("compiled")


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of layers in each call that computes all layers of a model."""
    seen, compute = list[int](), layer_stack.LayerStack.compute

    def count(stack: layer_stack.LayerStack, *given: Any, **options: Any) -> Tensor | None:
        output = compute(stack, *given, **options)
        if output is not None:
            seen.append(len(stack.layers))
        return output

    monkeypatch.setattr(layer_stack.LayerStack, "compute", count)
    return seen


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("rows", [1, 8, 64])
def test_all_layers_are_one_call(name: str, rows: int, together: list[int]) -> None:
    """Guards the cost of a pass, and that one which runs layers one by one returns the same bits."""
    model = model_of(name)
    prepared = prepare_model(model, True)
    found = output(model, rows=rows, prepared=prepared)
    assert together == [3]
    seen = list[int]()
    handle = model.model.layers[1].register_forward_hook(lambda *_: seen.append(1))
    assert torch.equal(output(model, rows=rows, prepared=prepared), found)
    handle.remove()
    assert (together, seen[:1]) == ([3], [1])
    assert torch.equal(output(model, rows=rows, prepared=prepared), found)
    assert together == [3, 3]


def test_layers_of_two_kinds_have_masks_of_their_own(together: list[int]) -> None:
    """Guards windows: the mask that the first layer gets is not that of the others."""
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    model = model_of("qwen2", use_sliding_window=True, sliding_window=3, layer_types=kinds)
    agreed(model, prepare_model(model, True))
    assert not together


def test_views_run_their_own_layers(together: list[int]) -> None:
    """Guards views that read the outputs of layers: the same logits as without."""
    model = model_of("llama")
    model.model.register_forward_hook(lambda *_: None)  # otherwise no view is needed
    cache = HFEngine(model, acceleration=prepare_model(model, True)).open(IDS[:1])
    cache.prefill()
    logits = list[Tensor]()
    for needs in (RequestedOutputs(hidden_layers=(0, 2)), RequestedOutputs()):
        logits.append(cache.forward(np.array([5], np.int32), np.array([-1], np.int32), needs=needs).logits)
        assert together == ([] if needs.hidden_layers else [3])
        cache.rollback()
    assert torch.equal(*logits)


def test_attributes_are_those_of_a_layer() -> None:
    """Guards models whose loop reads attributes of each layer, as those of Qwen did in older releases."""
    model = model_of("qwen2")
    run = prepare_model(model, True).model_for(model, 1)
    [joined] = run.model.layers[: len(model.model.layers)]
    assert isinstance(joined, layer_stack.JoinedLayers)
    assert joined.self_attn.layer_idx == 0
    assert joined.hidden_size == model.model.layers[0].hidden_size
    with pytest.raises(AttributeError, match="no_such"):
        _ = joined.no_such
