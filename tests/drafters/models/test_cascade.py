"""Cascades: the inner drafter changes how many passes a draft takes, never the draft model's own tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from models import perturbed, tiny_model
from speculant import Speculator
from speculant.core.drafter import Budget, Drafter, SessionRequest, Verified
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.sampler import Sampling
from speculant.core.tree import DraftTree
from speculant.drafters.models.cascade import CascadeDrafter, CascadeSettings, StagedDrafter, StagedSettings
from speculant.engines.hf.engine import HFEngine
from speculant.registry import BuildContext, build_drafter

PROMPT = [5, 9, 14, 3, 8, 5, 9, 14, 3, 8, 5, 9]


@pytest.fixture(scope="module")
def draft() -> Any:
    """A draft model."""
    return perturbed(tiny_model("llama"), 0.2)


def inner(name: str) -> Drafter:
    """Return the drafter of a method that drafts for the draft model."""
    return build_drafter(name, BuildContext(vocabulary=61))


def session(draft: Any, drafter: type[StagedDrafter], settings: Any, temperature: float) -> Any:
    """Return a session after the prompt, whose last token is the root."""
    engine, passes = HFEngine(draft), list[int]()

    def opened(prompt: Any) -> Any:
        cache = engine.open(torch.from_numpy(prompt).long()[None])
        forward = cache.forward

        def counted(tokens: Any, parents: Any, **options: Any) -> Any:
            passes.append(len(tokens))
            return forward(tokens, parents, **options)

        cache.forward = counted
        return cache

    made = drafter(opened, inner, vocabulary=61, settings=settings)
    start = SessionRequest(prompt=np.array(PROMPT[:-1], np.int32), sampling=Sampling(temperature=temperature))
    found = made.open(start)
    found.observe(Verified(tree=DraftTree.empty(), path=np.empty(0, np.int32), tokens=np.array(PROMPT[-1:], np.int32)))
    return found, passes


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_draft_is_the_models_own(draft: Any, temperature: float) -> None:
    """Guards the vertical cascade: with an inner drafter or without, the same tokens with the same q."""
    budget = Budget(nodes=9, depth=9)
    trees, counts = list[DraftTree](), list[int]()
    for nodes in (0, 8):
        made, passes = session(draft, StagedDrafter, StagedSettings(inner="lookup", inner_nodes=nodes), temperature)
        trees.append(made.propose(budget))
        counts.append(len(passes))
    alone, staged = trees
    assert staged.tokens.tolist() == alone.tokens.tolist()
    assert len(staged) == 9
    assert counts[1] <= counts[0]
    if temperature:
        torch.testing.assert_close(staged.proposal.q[:9], alone.proposal.q[:9], atol=1e-5, rtol=1e-4)


def test_later_tokens_are_chosen(draft: Any) -> None:
    """Guards the horizontal cascade: drawn tokens first, then chosen ones, marked as what they are."""
    made, _ = session(draft, CascadeDrafter, CascadeSettings(inner="lookup", length=1), 0.9)
    for _ in range(30):  # until the first token continues the period of the prompt
        tree = made.propose(Budget(nodes=6, depth=6))
        if len(tree) > 1:
            break
        made.observe(Verified(tree=tree, path=np.array([0], np.int32), tokens=np.array([*tree.tokens, 5], np.int32)))
    assert tree.proposal.chosen.tolist() == [False, *[True] * (len(tree) - 1)]
    assert tree.head(1).tokens.tolist() == tree.tokens[:1].tolist()


def test_the_inner_memory_is_saved(draft: Any, tmp_path: Any) -> None:
    """Guards persistence: the inner drafter's memory is what is saved, and one without memory says so."""
    target = tiny_model("llama")
    speculator = Speculator.from_transformers(target, method="staged", draft_model=draft, nodes=4)
    speculator.generate(PROMPT, max_new_tokens=12, temperature=0)
    speculator.save(tmp_path / "memory")
    Speculator.from_transformers(target, method="mix", memory=tmp_path / "memory")
    other = Speculator.from_transformers(target, method="staged", draft_model=draft, settings={"inner": "lookup"})
    with pytest.raises(UnsupportedError, match="keeps no memory"):
        other.save(tmp_path / "other")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"inner": "recycling"}, "cannot draft for"),
        ({"inner": "draft-model"}, "cannot draft"),
        ({"inner_nodes": -1}, "0"),
    ],
)
def test_bad_cascades_are_refused(draft: Any, settings: dict[str, Any], reason: str) -> None:
    """Guards against inner drafters that need what a draft model cannot give, before the first request."""
    with pytest.raises(UsageError, match=reason):
        Speculator.from_transformers(tiny_model("llama"), method="staged", draft_model=draft, settings=settings)
