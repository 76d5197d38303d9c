"""What is compared before each request, and named for other processes: all that decides how passes compute."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers.cache_utils import DynamicLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from models import tiny_model
from speculant.engines.hf.probe.model_state import digest_of, state_of


def attention(*args: Any, scale: float = 1.0, **options: Any) -> Any:
    """Attend as transformers' sdpa does; a stand-in for functions of users."""
    output, weights = ALL_ATTENTION_FUNCTIONS["sdpa"](*args, **options)
    return output * scale, weights


class Attending:
    """The same, with a scale of its own."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, *args: Any, **options: Any) -> Any:
        return attention(*args, scale=self.scale, **options)


def gated() -> Any:
    """Return a model with a gate, a flag in a container and a config of its own in one layer."""
    model = tiny_model("llama")
    inner = model.model.layers[0].self_attn
    inner.register_buffer("gate", torch.zeros(1))
    inner.settings = {"mixes": False}
    return model


def own_config(model: Any) -> None:
    inner = model.model.layers[0].self_attn
    inner.config = copy.copy(inner.config)
    inner.config.attention_dropout = 0.5


CHANGES: dict[str, Callable[[Any], object]] = {
    "written in place": lambda model: model.model.layers[0].self_attn.gate.fill_(1.0),
    "written past its version": lambda model: model.model.layers[0].self_attn.gate.data.fill_(1.0),
    "exchanged behind its name": lambda model: setattr(model.model.layers[0].self_attn.gate, "data", torch.ones(1)),
    "written by numpy": lambda model: model.model.layers[0].self_attn.gate.numpy().fill(1.0),
    "a flag in a dict": lambda model: model.model.layers[0].self_attn.settings.update(mixes=True),
    "a method of one module": lambda model: setattr(model.model.norm, "extra_repr", lambda: ""),
    "a config of one module": own_config,
    "a hook": lambda model: model.model.norm.register_forward_hook(lambda *_: None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_model_is_seen(change: str) -> None:
    """Guards requests behind a change: the state differs, and does not where nothing has changed."""
    model = gated()
    before = state_of(model)
    assert state_of(model) == before
    CHANGES[change](model)
    assert state_of(model) != before


@pytest.mark.parametrize(("home", "name"), [(DynamicLayer, "update"), (nn.functional, "silu")])
def test_a_patch_beside_the_model_is_seen(home: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards functions that passes look up elsewhere: torch's and those of transformers' caches."""
    model = gated()
    before, digest = state_of(model), digest_of(model)
    monkeypatch.setattr(home, name, lambda *_, **__: None)
    assert state_of(model) != before
    assert digest_of(model) != digest


def test_methods_of_classes_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards helpers of a class beside its forward."""
    model = gated()
    before = state_of(model)
    monkeypatch.setattr(type(model.model.norm), "extra_repr", lambda _: "")
    assert state_of(model) != before


@pytest.mark.parametrize(
    "function",
    [functools.partial(attention, scale=1.4), Attending(1.4), attention],
    ids=["partial", "object", "helper"],
)
def test_functions_that_hold_values_or_call_others_have_no_digest(
    function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards outcomes on disk: what another process might run under that name is never believed to be the same."""
    model = gated()
    assert digest_of(model) is not None
    AttentionInterface.register("probe_test", function)
    monkeypatch.setattr(model.config, "_attn_implementation_internal", "probe_test")
    try:
        assert digest_of(model) is None
    finally:
        ALL_ATTENTION_FUNCTIONS._global_mapping.pop("probe_test")


def test_processes_agree_on_a_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards start-up time: functions that are defaults of others, as of masks, lie elsewhere in each process."""
    digests = set()
    for _ in range(2):
        module = types.ModuleType("transformers.probe_test")
        exec("def mask(): ...\ndef attention(mask=mask, *, kind=int): ...", module.__dict__)
        monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "probe_test", module.attention)
        model = gated()
        monkeypatch.setattr(model.config, "_attn_implementation_internal", "probe_test")
        digests.add(digest_of(model))
    assert len(digests) == 1
    assert None not in digests
