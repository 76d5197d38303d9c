"""LLMCad: the tree's threshold, drafting during verification, and texts that depend on neither."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from models import perturbed, tiny_model
from pairwise import in_turn
from speculant import Speculator
from speculant.core.drafter import Budget, SessionRequest, Verified
from speculant.core.errors import UsageError
from speculant.core.tree import DraftTree
from speculant.drafters.models import llmcad
from speculant.drafters.models.llmcad import ConfidenceSettings, ConfidentTree, LLMCadDrafter, PipelineSession
from speculant.drafters.models.tree_acceptance import LevelGains
from speculant.engines.hf.engine import HFEngine
from trees import leaves, make_tree

PROMPT = [5, 9, 14, 3]


def verified(tree: DraftTree, path: list[int], own: int) -> Verified:
    """Return a round that accepted a path."""
    tokens = np.array([*tree.tokens[path], own], np.int32)
    return Verified(tree=tree, path=np.array(path, np.int32), tokens=tokens)


def opened(model: Any, settings: ConfidenceSettings) -> Any:
    """Return a session after the prompt, whose last token is the root."""
    engine = HFEngine(model)
    drafter = LLMCadDrafter(
        lambda prompt: engine.open(torch.from_numpy(prompt).long()[None]), vocabulary=61, settings=settings
    )
    session = drafter.open(SessionRequest(prompt=np.array(PROMPT[:-1], np.int32)))
    session.observe(verified(DraftTree.empty(), [], PROMPT[-1]))
    return session


def test_the_threshold_follows_what_is_accepted() -> None:
    """Guards the rule: half after a round that was right along the most probable path, twice after another; bounded."""
    tree = ConfidentTree(LevelGains(), ConfidenceSettings(threshold=0.04))
    draft = make_tree([1, 2, 3], [-1, 0, -1], [0.9, 0.8, 0.05])
    tree.learn(draft, [0, 1])
    assert tree.threshold == pytest.approx(0.02)
    tree.learn(draft, [0])
    tree.learn(draft, [2])
    assert tree.threshold == pytest.approx(0.08)
    for _ in range(20):
        tree.learn(draft, [])
    assert tree.threshold == llmcad.HIGHEST
    for _ in range(20):
        tree.learn(draft, [0, 1])
    assert tree.threshold == llmcad.LOWEST
    fixed = ConfidentTree(LevelGains(), ConfidenceSettings(threshold=0.04, adaptive=False))
    fixed.learn(draft, [])
    assert fixed.threshold == 0.04


def test_a_higher_threshold_ends_the_tree_earlier() -> None:
    """Guards what the threshold is compared with: the joint probability of the most probable path."""
    model, sizes = perturbed(tiny_model("llama"), 0.2), list[int]()
    for threshold in (0.0, 0.4):
        session = opened(model, ConfidenceSettings(threshold=threshold, ahead=0))
        sizes.append(int(session.propose(Budget(nodes=40, depth=10)).depths().max()))
    assert sizes[1] < sizes[0]


def test_what_is_drafted_during_the_pass_is_the_next_draft() -> None:
    """Guards the pipeline: used where the text goes along the most probable path and its next token, else dropped."""
    model = tiny_model("llama")
    session = opened(model, ConfidenceSettings(ahead=4))
    assert isinstance(session, PipelineSession)
    budget = Budget(nodes=6, depth=2)
    first = session.propose(budget)
    assert np.array_equal(session.propose(budget).tokens, first.tokens)
    best = first.best_chain().tolist()
    assert len(leaves(first)) > 1
    assert session._ahead is not None
    later = [token for token, _ in session._ahead.wait()]
    with torch.no_grad():
        own = model(torch.tensor([[*PROMPT, *first.tokens[best]]])).logits[0, -1].argmax()
    assert (len(later), later[0]) == (4, int(own))
    session.observe(verified(first, best, later[0]))
    second = session.propose(budget)
    assert second.tokens.tolist() == later[1:3]
    assert second.levels == 0
    assert 0 < second.weights[1] <= second.weights[0] <= 1
    session.observe(verified(second, [0], (later[2] + 1) % 61))
    third = session.propose(budget)
    assert third.levels is None
    session.close()


@pytest.mark.parametrize(("ahead", "temperature"), in_turn([0, 3, None], [0.7, 0.0]))
def test_texts_are_the_targets(ahead: int | None, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards token equality, alone and in batches, whatever was drafted when."""
    monkeypatch.setattr(llmcad, "count_cores", lambda: 64)
    target, draft = tiny_model("llama"), perturbed(tiny_model("llama"), 0.1)
    options: dict[str, Any] = {"max_new_tokens": 25, "temperature": temperature, "seed": 4}
    plain = Speculator.from_transformers(target, method="none")
    speculator = Speculator.from_transformers(
        target, method="llmcad", draft_model=draft, nodes=8, settings={"ahead": ahead}
    )
    prompts = [PROMPT, [7, 8], [11] * 9]
    wanted = [plain.generate(prompt, **options).ids for prompt in prompts]
    assert [speculator.generate(prompt, **options).ids for prompt in prompts] == wanted
    found = speculator.generate_batch(prompts, size=3, **options)
    assert temperature or [each.ids for each in found] == wanted
    assert sum(each.stats.accepted for each in found) > 5


def test_drafting_goes_on_where_cores_are_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the default: a pipeline on the target's own cores would slow the target."""
    for cores, kind in ((torch.get_num_threads(), False), (torch.get_num_threads() + 1, True)):
        monkeypatch.setattr(llmcad, "count_cores", lambda cores=cores: cores)
        session = opened(tiny_model("llama"), ConfidenceSettings())
        assert isinstance(session, PipelineSession) == kind
        session.close()


@pytest.mark.parametrize(("settings", "reason"), [({"ahead": 99}, "0 to 64"), ({"threshold": 1.0}, "below 1")])
def test_bad_settings_are_refused(settings: dict[str, Any], reason: str) -> None:
    """Guards against drafts that never end, before the first request."""
    model = tiny_model("llama")
    with pytest.raises(UsageError, match=reason):
        Speculator.from_transformers(model, method="llmcad", draft_model=model, settings=settings)
