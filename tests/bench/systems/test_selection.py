"""Systems by name, and what they share."""

from __future__ import annotations

from typing import Any

import pytest

from models import perturbed, tiny_model
from speculant.api import draft_caches
from speculant.bench.systems.selection import build_systems, parse_methods, takes_draft_model
from speculant.bench.systems.system import SpeculantSystem
from speculant.core.errors import SpeculantError
from speculant.drafters.copying.lookup import LookupSettings

LIMIT = 1 << 20


@pytest.mark.parametrize("method", ["draft-model", "opt-tree", "hf:assisted"])
def test_a_draft_model_is_asked_for(method: str) -> None:
    """Methods that draft with a model are refused without one, and taken with one, but not in forced runs."""
    with pytest.raises(SpeculantError, match="--draft-model"):
        parse_methods(method, forced=False, draft_model=False)
    assert parse_methods(f"{method},mix", forced=False, draft_model=True) == ["none", method, "mix"]
    with pytest.raises(SpeculantError, match="without --forced"):
        parse_methods(method, forced=True, draft_model=True)
    assert takes_draft_model(method)
    assert not takes_draft_model("mix")
    assert not takes_draft_model("hf:generate")


def test_models_are_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft model by all methods that draft with it, the target by all of them; a reset prepares neither again."""
    prepared: list[Any] = []
    prepare = draft_caches.prepare_model
    monkeypatch.setattr(
        draft_caches, "prepare_model", lambda model, fast: prepared.append(model) or prepare(model, fast)
    )
    target, draft = tiny_model("llama"), perturbed(tiny_model("llama"), 0.05)
    names = ["none", "draft-model", "opt-tree", "lookup", "hf:assisted"]
    settings = {"lookup": LookupSettings(copied=3)}
    systems = build_systems(names, target, draft_model=draft, nodes=4, memory_limit=LIMIT, fast=True, settings=settings)
    own = [system for system in systems if isinstance(system, SpeculantSystem)]
    for system in own:
        system.reset()
    assert prepared == [draft]
    assert len({id(system._speculator.fast) for system in own}) == 1
    assert [system.name for system in systems] == names
