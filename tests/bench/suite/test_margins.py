"""Margins of a text under the plain model, and their summary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from models import tiny_model
from speculant.api.speculator import Speculator
from speculant.bench.suite.margins import Margin, MarginSummary, margins

PROMPT = np.array([3, 4, 5], np.int32)


@pytest.fixture(scope="module")
def plain() -> Any:
    """Return plain decoding on a random model."""
    return Speculator.from_transformers(tiny_model("llama"), method="none", fast=False)


def test_margins_are_those_of_single_passes(plain: Any) -> None:
    """The model's own text has margins of 0; another token's is the logits' difference, and later tokens follow it."""
    ids = plain.generate(PROMPT.tolist(), max_new_tokens=8, temperature=0).ids
    assert [margin.value for margin in margins(plain, PROMPT, ids)] == [0.0] * 8
    other = [*ids[:4], (ids[4] + 1) % 50, *ids[5:]]
    found = margins(plain, PROMPT, other)
    with torch.no_grad():
        logits = plain.model(torch.tensor([[*PROMPT.tolist(), *other]])).logits[0, len(PROMPT) - 1 : -1]
    expected = logits.max(-1).values - logits[torch.arange(8), torch.tensor(other)]
    assert [margin.value for margin in found] == pytest.approx(expected.tolist(), abs=1e-4)
    assert found[4].value > 0
    assert not found[4].near_tie


def test_the_summary_counts() -> None:
    """Each token is the argmax, a near-tie or wrong; the JSON keeps its names."""
    summary = MarginSummary([Margin(0.0, 0.1), Margin(0.05, 0.1), Margin(0.2, 0.1)])
    assert (summary.argmax, summary.near_ties, summary.wrong, summary.largest) == (1, 1, 1, 0.2)
    assert summary.to_json()["best"] == 1
    assert [place["position"] for place in summary.to_json()["places"]] == [2, 3]
    assert summary.line() == "3 tokens: 1 the plain model's argmax, 1 near-ties, 1 wrong; largest margin 0.2"
