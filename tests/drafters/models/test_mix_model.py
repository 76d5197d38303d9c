"""`mix` and a draft model in one tree: what each knows is in it, and the mixture learns whom to trust."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from models import tiny_model
from speculant import Speculator
from speculant.core.errors import UsageError
from speculant.drafters.models.mixture import Mixture
from speculant.drafters.models.union import FIRST_WEIGHTS, features_of


def test_the_mixture_learns_whom_to_trust() -> None:
    """Guards online learning: where the model is always right and `mix` never, the model's candidate wins."""
    mixture, features = Mixture(FIRST_WEIGHTS), np.array([features_of(0.5, 0.1), features_of(0.1, 0.8)])
    for _ in range(500):
        mixture.learn(features, np.array([1.0, 0.0]))
    right, wrong = mixture.probabilities(features)
    assert right > 0.8 > 0.2 > wrong
    assert mixture.probabilities(np.array([features_of(0.99, 0.99)] * 5)).sum() <= 1 + 1e-9


def test_both_are_in_the_draft() -> None:
    """Guards the union: on a text that repeats, deep copies of `mix`; on a new one, the model's own tokens."""
    target = tiny_model("llama")
    speculator = Speculator.from_transformers(target, method="mix-model", draft_model=tiny_model("llama"), nodes=24)
    fresh = speculator.generate([5, 9, 14, 3, 8], max_new_tokens=40, temperature=0)
    assert fresh.stats.mat > 2
    plain = target.generate(torch.tensor([[5, 9, 14, 3, 8]]), max_new_tokens=40, do_sample=False)[0, 5:].tolist()
    assert fresh.ids == plain


@pytest.mark.parametrize("settings", [{"proposed": 0}, {"depth": -1}, {"min_probability": 1.0}])
def test_bad_settings_are_refused(settings: dict[str, Any]) -> None:
    """Guards the limits, before the first request."""
    model = tiny_model("llama")
    with pytest.raises(UsageError):
        Speculator.from_transformers(model, method="mix-model", draft_model=model, settings=settings)
