"""Shadow modules: they share a model's state, run other forwards, and leave the model as it is."""

from __future__ import annotations

import copy
import sys
import threading
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

from models import tiny_model
from speculant.engines.hf.cache import usable_cache
from speculant.engines.hf.cpu.accelerate import prepare_model
from speculant.engines.hf.cpu.shadow import Shadows

IDS = torch.tensor([[5, 9, 14, 3, 8, 5, 9, 14]])


def doubling(shadow: Any, x: torch.Tensor) -> torch.Tensor:
    return 2 * nn.Linear.forward(shadow, x)


def test_state_is_shared_and_forwards_are_not() -> None:
    """Guards the idea: other forwards, new weights, hooks and children count at once, and the module keeps its own."""
    inner = nn.Linear(4, 4)
    model, x, seen = nn.Sequential(inner, nn.Identity()), torch.randn(2, 4), []
    shadow = Shadows(model, {inner: doubling}).of(model)
    assert torch.equal(shadow(x), 2 * model(x))
    inner.weight = nn.Parameter(torch.ones(4, 4))
    assert torch.equal(shadow(x), 2 * model(x))
    handle = inner.register_forward_hook(lambda *_: seen.append(1))
    shadow(x)
    handle.remove()
    assert len(seen) == 1
    model[1] = nn.ReLU()
    assert torch.equal(shadow(x), (2 * inner(x)).relu())
    assert isinstance(shadow[0], nn.Linear)
    assert shadow[0] is not inner
    assert type(inner) is nn.Linear


def test_lists_of_modules_can_be_sliced() -> None:
    """Guards decoder layers, over which models iterate in slices."""
    inner = nn.Linear(4, 4)
    model = nn.ModuleList([inner, nn.Linear(4, 4), nn.Identity()])
    shadow = Shadows(model, {inner: doubling}).of(model)
    assert len(shadow[:2]) == 2
    assert shadow[:2][0] is shadow[0]
    assert len(model[:2]) == 2


def test_the_model_is_left_as_it_was() -> None:
    """Guards copies, saved weights and whatever looks at the model's modules."""
    model = tiny_model("llama")
    before = {name: set(module.__dict__) for name, module in model.named_modules()}
    kinds = [type(module) for module in model.modules()]
    prepared = prepare_model(model, True)
    with torch.inference_mode():
        prepared.model_for(model, 8)(IDS)
    assert {name: set(module.__dict__) for name, module in model.named_modules()} == before
    assert [type(module) for module in model.modules()] == kinds
    twin = copy.deepcopy(model)
    with torch.inference_mode():
        assert torch.equal(twin(IDS).logits, model(IDS).logits)
    assert set(model.state_dict()) == set(twin.state_dict())


@pytest.mark.parametrize("name", ["llama", pytest.param("phi3", marks=pytest.mark.slow)])
def test_an_interrupt_anywhere_leaves_the_model_whole(name: str, compiled: Any) -> None:
    """Guards Ctrl-C at every line of ours in an accelerated pass: the model's own passes are right afterwards."""
    model = tiny_model(name, num_hidden_layers=1)
    prepared = prepare_model(model, True)
    with torch.inference_mode():
        expected = model(IDS).logits
        accelerated = one_pass(prepared, model)
        for stop in range(10_000):
            if not interrupted(prepared, model, stop):
                break
            if stop % 10 == 0:
                assert torch.equal(model(IDS).logits, expected)
        assert stop > 20
        assert torch.equal(model(IDS).logits, expected)
        assert torch.equal(one_pass(prepared, model), accelerated)
    assert model.config._attn_implementation == "sdpa"


def one_pass(prepared: Any, model: Any) -> torch.Tensor:
    cache = usable_cache(None)
    prepared.model_for(model, 4)(IDS[:, :4], past_key_values=cache)
    logits: torch.Tensor = prepared.model_for(model, 4)(IDS[:, 4:], past_key_values=cache).logits
    return logits


def interrupted(prepared: Any, model: Any, stop: int) -> bool:
    """Run a pass that is interrupted at a line of ours; return whether it has so many."""
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if "engines/hf/cpu" not in frame.f_code.co_filename:
            return None
        if event == "line":
            lines += 1
            if lines > stop:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        prepared.model_for(model, 4)(IDS[:, :4], past_key_values=usable_cache(None))
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def test_another_thread_runs_the_model_meanwhile(compiled: Any) -> None:
    """Guards plain passes beside accelerated ones: from within a pass, another thread runs the model's own code."""
    model, found = tiny_model("llama"), []
    prepared = prepare_model(model, True)
    with torch.inference_mode():
        expected = model(IDS).logits

    def plain() -> None:
        with torch.inference_mode():
            found.append(model(IDS).logits)

    def beside(*_: Any) -> None:
        if threading.current_thread() is threading.main_thread() and not found:
            thread = threading.Thread(target=plain)
            thread.start()
            thread.join()

    handle = model.model.layers[1].register_forward_pre_hook(beside)
    with torch.inference_mode():
        prepared.model_for(model, 8)(IDS)
    handle.remove()
    assert torch.equal(found[0], expected)
