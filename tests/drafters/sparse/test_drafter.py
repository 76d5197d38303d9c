"""Settings and models that drafting on a part of the cache refuses, before the first draft."""

from __future__ import annotations

from typing import Any

import pytest

from models import hybrid_model, tiny_model
from speculant import Speculator
from speculant.core.errors import UnsupportedError, UsageError
from speculant.drafters.sparse.drafter import SparseCacheSettings
from speculant.registry import METHODS, BuildContext, build_drafter


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"budget": 100}, "sinks=16 and recent=128 are more than budget=100"),
        ({"recent": 0}, "needs recent rows"),
        ({"page": 0}, "pages of 1 row or more"),
        ({"sinks": -1}, "no negative number"),
        ({"refresh": 0}, "refresh must be at least 1"),
        ({"min_context": -1}, "min_context must be at least 0"),
        ({"stop": "never"}, "stop must be"),
        ({"window": 4}, "no setting 'window'"),
    ],
)
def test_bad_settings(settings: dict[str, Any], reason: str) -> None:
    """Guards against budgets without room and rows that are never chosen again."""
    with pytest.raises(UsageError, match=reason):
        build_drafter("sparse-cache", BuildContext(settings=settings))


def test_the_budget_includes_all_rows() -> None:
    """Guards the budget's meaning, and drafts of sinks and recent rows alone."""
    assert SparseCacheSettings().row_budget().retrieved == 512 - 16 - 128
    assert SparseCacheSettings(budget=100, recent=84).row_budget().retrieved == 0


@pytest.mark.parametrize(("model", "reason"), [("bloom", "no explicit attention masks"), ("hybrid", "keep a state")])
def test_models_whose_passes_read_the_whole_cache(model: str, reason: str) -> None:
    """Guards models that cannot draft in this way: refused when the speculator is made, with a way out."""
    made = hybrid_model() if model == "hybrid" else tiny_model(model)
    with pytest.raises(UnsupportedError, match=f"{reason}.*'mix'"):
        Speculator.from_transformers(made, method="sparse-cache")


def test_a_model_whose_layers_run_in_a_way_of_their_own() -> None:
    """Guards what no config tells: the first request is refused before any draft."""
    model = tiny_model("llama")
    model.model.forward = lambda *args, **options: type(model.model).forward(model.model, *args, **options)
    speculator = Speculator.from_transformers(model, method="sparse-cache", nodes=4, fast=False)
    with pytest.raises(UnsupportedError, match="replaced or compiled"):
        speculator.generate([5, 9, 14], max_new_tokens=5)


def test_one_method_drafts_on_rows() -> None:
    """Guards the table: the drafter that takes rows is known as such, and no other."""
    assert [name for name, method in METHODS.items() if method.takes_rows] == ["sparse-cache"]
