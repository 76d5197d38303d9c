"""Models and devices whose passes are not recorded: the reason is told, and plain passes are run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models import tiny_model
from speculant.engines.hf.cpu.accelerate import CpuAcceleration, prepare_model
from speculant.engines.hf.cuda.graph_runner import GraphError, GraphRunner
from tapes import Tapes


def refused(change: Callable[[Any], object]) -> Any:
    model = tiny_model("llama")
    change(model)
    return model


def adapted(model: Any) -> None:
    model.lm_head.base_layer = nn.Identity()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model: model.train(), "training"),
        (lambda model: model.lm_head.register_forward_hook(lambda *_: None), "hooks"),
        (lambda model: setattr(model.lm_head, "forward", lambda hidden: hidden), "hooks"),
        (lambda model: setattr(model, "_orig_mod", None), "compiled"),
        (adapted, "adapter"),
    ],
)
def test_what_a_recording_would_miss_is_refused(change: Callable[[Any], object], reason: str) -> None:
    """Guards settings that a recording would freeze or leave out."""
    with pytest.raises(GraphError, match=reason):
        GraphRunner(refused(change), Tapes)


def test_models_without_trees_are_refused() -> None:
    """Guards models that take no mask or no positions."""
    with pytest.raises(GraphError, match="chains only"):
        GraphRunner(tiny_model("bloom"), Tapes)


def test_a_pass_that_waits_for_the_device_is_refused() -> None:
    """Guards models whose forward looks at numbers, which CUDA cannot record."""
    model = tiny_model("llama")

    class Looking(nn.Identity):
        """Looks at its input."""

        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            return input * input.sum().item()

    model.model.norm = nn.Sequential(model.model.norm, Looking())
    with pytest.raises(GraphError, match="waits for the device"):
        GraphRunner(model, Tapes)


def test_a_device_that_cannot_record_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the fallback of `fast=True` on CUDA: plain passes and one line; unasked, not even that."""
    model = tiny_model("llama")
    with pytest.raises(GraphError, match=r"device is full$"):
        GraphRunner(model, failing)
    with pytest.raises(GraphError):
        GraphRunner(model)  # CUDA graphs on a CPU
    monkeypatch.setattr("speculant.engines.hf.cuda.graph_runner.GraphRunner", refusing)
    monkeypatch.setattr(type(model), "device", torch.device("cuda"))
    assert prepare_model(model, True).notes == ("not prepared for fast passes: the device is full.",)
    assert prepare_model(model, None) == prepare_model(model, False) == CpuAcceleration()


def failing() -> Tapes:
    tapes = Tapes()
    tapes.fail_recording = True
    return tapes


def refusing(model: Any) -> GraphRunner:
    raise GraphError("the device is full")


def test_prepared_models_replay_on_cuda_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the default: nothing is recorded on a CPU, nor on CUDA unless asked for."""
    model, graphs = tiny_model("llama"), GraphRunner(tiny_model("llama"), Tapes)
    assert all(prepare_model(model, fast).graphs is None for fast in (None, True, False))
    monkeypatch.setattr("speculant.engines.hf.cuda.graph_runner.GraphRunner", lambda _: graphs)
    monkeypatch.setattr(type(model), "device", torch.device("cuda"))
    assert prepare_model(model, True).graphs is graphs
    assert prepare_model(model, None).graphs is None
