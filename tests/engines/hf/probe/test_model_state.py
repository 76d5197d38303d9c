"""What is compared before each request, and named for other processes: all that decides how passes compute."""

from __future__ import annotations

import functools
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers.cache_utils import DynamicLayer
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from model_changes import CHANGES, gated
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


def test_the_folder_of_a_checkpoint_is_no_part_of_it(tmp_path: Path) -> None:
    """Guards start-up time: a model that was moved or downloaded again is not probed again."""
    model, digests = gated(), set()
    for place in ("here", "there"):
        model.save_pretrained(tmp_path / place)
        digests.add(digest_of(type(model).from_pretrained(tmp_path / place)))
    assert len(digests) == 1


def test_another_function_of_experts_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards mixtures of experts: what the config's name refers to may be exchanged behind a speculator's back."""
    model = tiny_model("mixtral")
    monkeypatch.setattr(model.config, "_experts_implementation_internal", "grouped_mm")
    before, digest = state_of(model), digest_of(model)
    assert digest is not None
    monkeypatch.setitem(ALL_EXPERTS_FUNCTIONS._global_mapping, "grouped_mm", attention)
    assert state_of(model) != before
    assert digest_of(model) is None


def test_processes_agree_on_a_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards start-up time: defaults of functions, such as masks and registries, lie elsewhere in each process."""
    source = "class Registry: ...\ndef mask(): ...\ndef attention(mask=mask, *, kind=int, registry=Registry()): ..."
    digests = set()
    for _ in range(2):
        module = types.ModuleType("transformers.probe_test")
        exec(source, module.__dict__)
        monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "probe_test", module.attention)
        model = gated()
        monkeypatch.setattr(model.config, "_attn_implementation_internal", "probe_test")
        digests.add(digest_of(model))
    assert len(digests) == 1
    assert None not in digests


@pytest.mark.parametrize("layout", ["sparse", "freed", "conjugated"])
def test_tensors_without_plain_memory_are_passed_over(layout: str) -> None:
    """Guards sparse buffers, those that were freed, and views: their memory is not read, and nothing fails."""
    model, buffer = gated(), torch.arange(64.0)
    if layout == "sparse":
        buffer = buffer.to_sparse()
    elif layout == "conjugated":
        buffer = torch.ones(4, dtype=torch.complex64).conj()
    else:
        buffer = buffer[8:]
        buffer.untyped_storage().resize_(0)
    model.model.norm.register_buffer("own", buffer)
    assert state_of(model) == state_of(model)
