"""Settings and models that drafters of layers refuse, before the first draft."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from models import deep_model
from speculant import Speculator
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.sublayers import Sublayers
from speculant.drafters.layers.drafter import LayerDrafter
from speculant.drafters.layers.swift import SWIFTDrafter
from speculant.registry import METHODS, BuildContext, build_drafter

METHODS_OF_LAYERS = [name for name, method in METHODS.items() if method.takes_layers]


@pytest.mark.parametrize(
    ("method", "settings", "reason"),
    [
        ("layer-skip", {"skipped": "attention 2; mlp 3,2; mlp 2"}, "names mlp 2 twice"),
        ("layer-skip", {"skipped": "attention 0-7; mlp 0-7"}, "no layer to draft with"),
        ("layer-skip", {"skipped": "norm 2"}, "as in 3,5-8"),
        ("layer-skip", {"skipped": "attention"}, "as in 3,5-8"),
        ("layer-skip", {"skipped": "5-3"}, "write 3-5"),
        ("layer-skip", {"skipped": "3,9"}, "no layer 9 to skip; the model has 8"),
        ("layer-skip", {"skipped": "-1"}, "no layer -1"),
        ("layer-skip", {"skipped": "3,x"}, "as in 3,5-8"),
        ("layer-skip", {"skipped": "3,3"}, "twice"),
        ("layer-skip", {"skipped": "0,1,2,3,4,5,6,7"}, "no layer to draft with"),
        ("layer-skip", {"threshold": 2}, "from 0 to 1"),
        ("layer-skip", {"longest": 0}, "from 1 to 64"),
        ("swift", {"skip_ratio": 0.0}, "above 0"),
        ("swift", {"enough": 1.5}, "from 0 to 1"),
        ("swift", {"window": 0}, "window must be at least 1"),
        ("early-exit", {"layer": 8}, "from 1 to 7 for this model, which has 8 layers, not 8"),
        ("early-exit", {"layer": 0}, "from 1 to 7"),
        ("early-exit", {"stop": "never"}, "stop must be"),
        ("early-exit", {"tree": "guesses", "layer": 9}, "from 1 to 7"),
        ("ppd", {"top_k": 0}, "guesses must be"),
        ("ppd", {"depth": 65}, "length must be"),
        ("early-exit", {"tree": "guesses", "guesses": 33, "length": 2}, "66 nodes; at most 64"),
        ("early-exit", {"tree": "wide"}, "chain or guesses"),
        ("early-exit", {"groups": 2, "layer": 2}, "leave out `layer`"),
        ("speed", {"groups": 1}, "from 2 to the model's 8 layers"),
    ],
)
def test_bad_settings(method: str, settings: dict[str, Any], reason: str) -> None:
    """Guards against layers that do not exist, and drafts that never end or do not fit a pass."""
    with pytest.raises(UsageError, match=reason):
        build_drafter(method, BuildContext(layers=8, settings=settings))


@pytest.mark.parametrize("method", METHODS_OF_LAYERS)
@pytest.mark.parametrize(("layers", "reason"), [(0, "cannot be left out"), (1, "has one decoder layer")])
def test_models_without_layers_to_leave_out(method: str, layers: int, reason: str) -> None:
    """Guards the message: the cause, and a method that works."""
    with pytest.raises(UnsupportedError, match=f"{reason}.*'mix'"):
        build_drafter(method, BuildContext(layers=layers))


def test_a_model_that_takes_no_masks() -> None:
    """Guards models that verify chains only: refused when the speculator is made, not in the middle of a text."""
    with pytest.raises(UnsupportedError, match="takes no explicit attention masks"):
        Speculator.from_transformers(deep_model("bloom"), method="early-exit")


def test_a_model_whose_layers_run_in_a_way_of_their_own() -> None:
    """Guards what no config tells: the first request is refused before any draft."""
    model = deep_model("llama")
    model.model.forward = lambda *args, **options: type(model.model).forward(model.model, *args, **options)
    speculator = Speculator.from_transformers(model, method="early-exit", nodes=4, fast=False)
    with pytest.raises(UnsupportedError, match="replaced or compiled"):
        speculator.generate([5, 9, 14], max_new_tokens=5)


@pytest.mark.parametrize(
    ("method", "layers", "settings", "drafting"),
    [
        ("layer-skip", 8, {}, (0, 2, 4, 6, 7)),
        ("layer-skip", 2, {}, (0,)),
        ("layer-skip", 4, {"skipped": "3,0"}, (1, 2)),
        ("swift", 6, {}, (0, 2, 4, 5)),
        ("early-exit", 12, {}, (0, 1, 2, 3)),
        ("early-exit", 2, {}, (0,)),
        ("early-exit", 6, {"layer": 4}, (0, 1, 2, 3)),
        ("ppd", 7, {}, (0, 1, 2)),
        ("speed", 8, {}, (0, 1)),
        ("speed", 3, {}, (0,)),
        ("speed", 8, {"groups": 2}, (0, 1, 2, 3)),
    ],
)
def test_layers_that_draft(method: str, layers: int, settings: dict[str, Any], drafting: tuple[int, ...]) -> None:
    """Guards the defaults and what settings mean."""
    drafter = build_drafter(method, BuildContext(layers=layers, settings=settings or None))
    assert isinstance(drafter, LayerDrafter)
    assert drafter.layers == Sublayers.whole(drafting)


def test_layers_that_cannot_be_split(caplog: pytest.LogCaptureFixture) -> None:
    """Guards other layouts of layers: refused if sublayers are named; SWIFT searches whole layers and says so."""
    context = BuildContext(layers=8, whole_layers="no MLP was found", settings={"skipped": "mlp 1"})
    with pytest.raises(UnsupportedError, match="no MLP was found"):
        build_drafter("layer-skip", context)
    drafter = build_drafter("swift", BuildContext(layers=8, whole_layers="no MLP", settings={"sublayers": True}))
    assert isinstance(drafter, SWIFTDrafter)
    assert drafter.search.candidate(np.random.default_rng(0)).are_whole
    assert "no MLP. SWIFT searches whole layers" in caplog.text
