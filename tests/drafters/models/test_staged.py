"""Staged decoding: the inner drafter changes how many passes a tree takes, never the tree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from models import perturbed, tiny_model
from speculant import Speculator
from speculant.core.drafter import Budget, SessionRequest, Verified
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.sampler import Sampling
from speculant.core.tree import DraftTree
from speculant.drafters.models.staged import StagedDrafter, StagedSettings
from speculant.engines.hf.engine import HFEngine
from speculant.registry import BuildContext, build_drafter
from trees import leaves

PROMPT = [5, 9, 14, 3, 8, 5, 9, 14, 3, 8, 5, 9]


@pytest.fixture(scope="module")
def draft() -> Any:
    """A draft model."""
    return perturbed(tiny_model("llama"), 0.2)


def session(draft: Any, settings: StagedSettings, temperature: float, passes: list[int]) -> Any:
    """Return a session after the prompt, whose last token is the root; its passes of the model are listed."""
    engine = HFEngine(draft)

    def opened(prompt: Any) -> Any:
        cache = engine.open(torch.from_numpy(prompt).long()[None])
        forward = cache.forward

        def counted(tokens: Any, parents: Any, **options: Any) -> Any:
            passes.append(len(tokens))
            return forward(tokens, parents, **options)

        cache.forward = counted
        return cache

    made = StagedDrafter(
        opened, lambda name: build_drafter(name, BuildContext(vocabulary=61)), vocabulary=61, settings=settings
    )
    start = SessionRequest(prompt=np.array(PROMPT[:-1], np.int32), sampling=Sampling(temperature=temperature))
    found = made.open(start)
    found.observe(Verified(tree=DraftTree.empty(), path=np.empty(0, np.int32), tokens=np.array(PROMPT[-1:], np.int32)))
    return found


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("siblings", [1, 3])
def test_the_tree_is_the_models_own(draft: Any, temperature: float, siblings: int) -> None:
    """Guards both stages over rounds: with an inner drafter or without, the same nodes with the same q."""
    counts = list[int]()
    trees: list[list[DraftTree]] = []
    for nodes in (0, 12):
        passes, drawn, settings = list[int](), list[DraftTree](), StagedSettings(inner_nodes=nodes, siblings=siblings)
        made = session(draft, settings, temperature, passes)
        for _ in range(6):
            tree = made.propose(Budget(nodes=9, depth=6))
            drawn.append(tree)
            path = tree.path(int(np.argmax(tree.depths()))).tolist()[:2]
            tokens = np.array([*tree.tokens[path], 5], np.int32)
            made.observe(Verified(tree=tree, path=np.array(path, np.int32), tokens=tokens))
        trees.append(drawn)
        counts.append(len(passes))
    for alone, staged in zip(*trees, strict=True):
        assert staged.tokens.tolist() == alone.tokens.tolist()
        assert staged.parents.tolist() == alone.parents.tolist()
        assert (len(leaves(staged)) > 1) == (siblings > 1)
        if temperature:
            for row in {parent + 1 for parent in staged.parents.tolist()}:
                torch.testing.assert_close(staged.proposal.q[row], alone.proposal.q[row], atol=1e-5, rtol=1e-4)
    assert counts[1] < counts[0] or siblings > 1
    assert counts[1] <= counts[0]


def test_the_inner_memory_is_saved(draft: Any, tmp_path: Any) -> None:
    """Guards persistence: the inner drafter's memory is what is saved, and one without memory says so."""
    target = tiny_model("llama")
    speculator = Speculator.from_transformers(target, method="staged", draft_model=draft, nodes=4)
    speculator.generate(PROMPT, max_new_tokens=12, temperature=0)
    speculator.save(tmp_path / "memory")
    Speculator.from_transformers(target, method="mix", memory=tmp_path / "memory")
    other = Speculator.from_transformers(target, method="staged", draft_model=draft, settings={"inner": "lookup"})
    with pytest.raises(UnsupportedError, match="has no memory"):
        other.save(tmp_path / "other")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"inner": "recycling"}, "cannot draft for"),
        ({"inner_nodes": -1}, "0 to 64"),
        ({"siblings": 0}, "siblings from 1 to"),
    ],
)
def test_bad_settings_are_refused(draft: Any, settings: dict[str, Any], reason: str) -> None:
    """Guards against inner drafters that need what a draft model cannot give, before the first request."""
    with pytest.raises(UsageError, match=reason):
        Speculator.from_transformers(tiny_model("llama"), method="staged", draft_model=draft, settings=settings)
