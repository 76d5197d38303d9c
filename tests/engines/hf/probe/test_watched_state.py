"""The state of a model that is found anew only where something may have changed."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from transformers.cache_utils import DynamicLayer

from model_changes import CHANGES, gated
from speculant.engines.hf.probe import watched_state
from speculant.engines.hf.probe.model_state import state_of
from speculant.engines.hf.probe.watched_state import WatchedState


@pytest.mark.parametrize("change", CHANGES)
def test_the_state_is_the_current_one(change: str) -> None:
    """Guards requests behind a change: what is compared with copies misses nothing, twice in a row."""
    model = gated()
    watched = WatchedState(model)
    before = watched.find()
    assert before == state_of(model)
    CHANGES[change](model)
    assert watched.find() == state_of(model) != before
    assert watched.find() == state_of(model)


@pytest.mark.parametrize(("home", "name"), [(DynamicLayer, "update"), (nn.functional, "silu")])
def test_a_patch_beside_the_model_is_seen(home: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards functions that passes look up elsewhere."""
    watched = WatchedState(gated())
    before = watched.find()
    monkeypatch.setattr(home, name, lambda *_, **__: None)
    assert watched.find() != before


def test_a_global_hook_is_seen() -> None:
    """Guards hooks of all modules."""
    watched = WatchedState(gated())
    before = watched.find()
    hook = register_module_forward_hook(lambda *_: None)
    try:
        assert watched.find() != before
    finally:
        hook.remove()
    assert watched.find() == before


def test_nothing_is_read_again_without_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the time of a request: one attribute after another is looked at only where something has changed."""
    model = gated()
    watched = WatchedState(model)
    state = watched.find()
    monkeypatch.setattr(watched_state, "state_of", lambda _: pytest.fail("read again"))
    assert watched.find() is state
