"""Speculant's methods as systems of a benchmark."""

from __future__ import annotations

from typing import Any

import pytest

from models import perturbed, tiny_model
from speculant.api.speculator import Speculator
from speculant.bench.suite.tasks import TaskSampling
from speculant.bench.systems.system import SpeculantSystem


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    """Return a target and a draft model that is close to it."""
    return tiny_model("llama"), perturbed(tiny_model("llama"), 0.05)


@pytest.mark.parametrize(
    ("method", "verifier", "greedy", "sampled"),
    [
        ("lookup", None, True, True),
        ("lookup", "speculative-sampling", True, False),
        ("lookup", "typical", False, False),
        ("draft-model", None, True, False),
        ("opt-tree", None, True, True),
    ],
)
def test_what_tokens_are_promised(
    method: str, verifier: str | None, greedy: bool, sampled: bool, pair: tuple[Any, Any]
) -> None:
    """Rules that keep the distribution promise the tokens in greedy decoding only, lossy rules never."""
    model, draft_model = pair
    system = SpeculantSystem(
        method,
        lambda: Speculator.from_transformers(
            model,
            method=method,
            verifier=verifier,
            lossy=True,
            draft_model=None if method == "lookup" else draft_model,
        ),
    )
    assert (system.token_identical(TaskSampling()), system.token_identical(TaskSampling(1.0))) == (greedy, sampled)
