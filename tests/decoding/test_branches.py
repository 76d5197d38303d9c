"""Engines that keep few branches apart: every draft fits, and the text is that of plain decoding."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from guesses import prompts
from models import endless
from speculant import Speculator
from speculant.core.branches import branches_of
from speculant.engines.hf.engine import HFEngine

CHOSEN = ("lookahead", "recycling", "aded", "mix", "opt-tree")
SAMPLED = ("specinfer", "mcsd", "sequoia", "spectr")
PROMPTS = prompts()[:4]  # a batch of three and one that follows
OPTIONS = {"max_new_tokens": 14}


def target() -> Any:
    """Return the model, which is its own draft model."""
    return endless("llama", num_hidden_layers=1)


@cache
def plain_texts() -> list[list[int]]:
    """Return the greedy texts of plain decoding, which every method writes."""
    speculator = Speculator.from_transformers(target(), method="none")
    return [speculator.generate(prompt, temperature=0, **OPTIONS).ids for prompt in PROMPTS]


class Narrow(HFEngine):
    """Takes passes of so many texts and branches, as llama.cpp does.

    Attributes:
        widest: the most branches that a draft of a text alone had.
    """

    def __init__(self, model: Any, sequences: int) -> None:
        super().__init__(model)
        self._sequences, self.widest = sequences, 0

    @property
    def capabilities(self) -> Any:
        return replace(super().capabilities, sequences=self._sequences)

    def forward(self, batch: Any, *given: Any) -> Any:
        branches = [branches_of(draft) for _, _, draft in batch]
        assert sum(branches) + len(batch) <= self._sequences
        self.widest = max([self.widest, *branches])
        return super().forward(batch, *given)


@pytest.mark.parametrize("method", [*CHOSEN, *SAMPLED])
@pytest.mark.parametrize("sequences", [4, pytest.param(9, marks=pytest.mark.slow)])
def test_drafts_have_no_more_branches_than_there_are(method: str, sequences: int) -> None:
    """Guards requests that ended with "the draft branches into more sequences": alone and together, nodes and queries.

    Drafts that are sampled keep to the number themselves, since dropping a sampled node would bias the text.
    """
    model = target()
    drafts = {} if method in ("lookahead", "recycling", "aded", "mix") else {"draft_model": model}
    sampling = OPTIONS | {"temperature": 0 if method in CHOSEN else 1.0, "seed": 5}
    speculator = Speculator.from_transformers(model, method=method, nodes=24, fast=False, **drafts)
    speculator.engine = engine = Narrow(model, sequences)
    found = [speculator.generate(prompt, **sampling).ids for prompt in PROMPTS[:2]]
    together = speculator.generate_batch(PROMPTS, size=3, **sampling)
    assert engine.widest
    if method in CHOSEN:
        assert found == plain_texts()[:2]
        assert [each.ids for each in together] == plain_texts()
