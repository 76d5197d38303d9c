"""Cascades: the drafters behind a model change how many passes its draft takes, never the model's own tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from distributions import VOCABULARY, distribution_of_drafts, model, own_distribution
from models import perturbed, tiny_model
from speculant import Speculator
from speculant.core.drafter import Budget, Drafter, SessionRequest, Verified
from speculant.core.errors import UsageError
from speculant.core.sampler import Sampling
from speculant.core.tree import DraftTree, Proposal
from speculant.drafters.models.cascade import CascadeDrafter, CascadeSettings, parse_lengths
from speculant.engines.hf.engine import HFEngine
from speculant.registry import BuildContext, build_drafter
from speculant.verifiers.speculative_sampling import SpeculativeSampling

PROMPT = [5, 9, 14, 3, 8, 5, 9, 14, 3, 8, 5, 9]


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    """Two draft models, which usually agree."""
    return perturbed(tiny_model("llama"), 0.2), perturbed(tiny_model("llama"), 0.21)


def inner(name: str) -> Drafter:
    """Return the drafter of a method that drafts behind the models."""
    return build_drafter(name, BuildContext(vocabulary=61))


def session(models: tuple[Any, ...], settings: CascadeSettings, temperature: float) -> Any:
    """Return a session after the prompt, whose last token is the root, and the rows of each model's passes."""
    passes: list[list[int]] = [[] for _ in models]

    def opener(place: int) -> Any:
        engine = HFEngine(models[place])

        def opened(prompt: Any) -> Any:
            cache = engine.open(torch.from_numpy(prompt).long()[None])
            forward = cache.forward

            def counted(tokens: Any, parents: Any, **options: Any) -> Any:
                passes[place].append(len(tokens))
                return forward(tokens, parents, **options)

            cache.forward = counted
            return cache

        return opened

    made = CascadeDrafter([opener(place) for place in range(len(models))], inner, vocabulary=61, settings=settings)
    start = SessionRequest(prompt=np.array(PROMPT[:-1], np.int32), sampling=Sampling(temperature=temperature))
    found = made.open(start)
    found.observe(Verified(tree=DraftTree.empty(), path=np.empty(0, np.int32), tokens=np.array(PROMPT[-1:], np.int32)))
    return found, passes


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_first_models_draft_is_its_own(models: tuple[Any, Any], temperature: float) -> None:
    """Guards the vertical cascade: with drafters behind it or without, same tokens, same q, fewer passes."""
    trees, counts = list[DraftTree](), list[int]()
    for lengths in ("9,0,0;0,0,0;0,0,0", "9,0,0;0,3,8;0,0,8"):
        made, passes = session(models, CascadeSettings(inner="lookup", lengths=lengths), temperature)
        trees.append(made.propose(Budget(nodes=9, depth=9)))
        assert made.propose(Budget(nodes=9, depth=9)).tokens.tolist() == trees[-1].tokens.tolist()
        counts.append(len(passes[0]))
    alone, staged = trees
    assert staged.tokens.tolist() == alone.tokens.tolist()
    assert len(staged) == 9
    assert counts[1] < counts[0] + bool(temperature)
    if temperature:
        torch.testing.assert_close(staged.proposal.q[:9], alone.proposal.q[:9], atol=1e-5, rtol=1e-4)


def test_every_token_has_the_q_of_the_drafter_that_made_it(models: tuple[Any, Any]) -> None:
    """Guards the horizontal cascade: q of the first model, then of the second, then chosen tokens."""
    made, _ = session(models, CascadeSettings(inner="lookup", lengths="2,1,4;0,2,8;0,0,8"), 0.5)
    text, ends = list(PROMPT), 0
    for _ in range(12):
        tree = made.propose(Budget(nodes=7, depth=7))
        chosen = [False] * len(tree) if tree.proposal.chosen is None else tree.proposal.chosen.tolist()
        assert chosen == [node >= 3 for node in range(len(tree))]
        ends += len(tree) > 3
        for node, drafting in enumerate((models[0], models[0], models[1])):
            with torch.no_grad():
                logits = drafting(torch.tensor([[*text, *tree.tokens[:node].tolist()]])).logits[0, -1]
            torch.testing.assert_close(tree.proposal.q[node], (logits / 0.5).softmax(-1), atol=1e-5, rtol=1e-4)
        text += [*tree.tokens[:2].tolist(), 5]
        made.observe(Verified(tree=tree, path=np.array([0, 1], np.int32), tokens=np.array(text[-3:], np.int32)))
    assert ends


def test_texts_have_the_targets_distribution() -> None:
    """Guards losslessness of a chain of two models and a chosen token: exact enumeration."""
    p, one, other = model(1), model(2), model(3)
    listed = list[tuple[DraftTree, float]]()
    for first in range(VOCABULARY):
        for second in range(VOCABULARY):
            tokens = np.array([first, second, (first + second) % VOCABULARY], np.int32)
            q = torch.tensor(np.stack([one(()), other((first,)), one(())]))
            proposal = Proposal(q, "iid", np.array([False, False, True]))
            tree = DraftTree(tokens, np.arange(-1, 2, dtype=np.int32), np.ones(3, np.float32), proposal)
            listed.append((tree, one(())[first] * other((first,))[second]))
    texts, accepted = distribution_of_drafts(SpeculativeSampling().rule, p, listed)
    assert texts == pytest.approx(own_distribution(p, 4), abs=1e-9)
    assert accepted > 0


@pytest.mark.parametrize("lengths", ["", "2,3,4;0,1,4;0,0,4"])
def test_greedy_texts_are_the_targets(models: tuple[Any, Any], lengths: str) -> None:
    """Guards several models over many rounds, each in step with the text."""
    target = tiny_model("llama")
    plain = target.generate(torch.tensor([PROMPT]), max_new_tokens=24, do_sample=False)[0, len(PROMPT) :].tolist()
    for nodes in (9, "auto"):
        speculator = Speculator.from_transformers(
            target, method="cs-drafting", draft_model=list(models), nodes=nodes, settings={"lengths": lengths}
        )
        found = speculator.generate(PROMPT, max_new_tokens=24, temperature=0)
        assert found.ids == plain
        assert nodes == "auto" or found.stats.accepted > 0
        assert speculator.generate(PROMPT, max_new_tokens=12, temperature=0.8, seed=1).ids


def test_the_authors_matrix_is_the_default() -> None:
    """Guards the k matrix: that of the authors' code for two models and Max-Gram, and its form for other numbers."""
    assert parse_lengths("", 2) == ((5, 14, 10), (0, 1, 10), (0, 0, 10))
    assert parse_lengths("", 1) == ((5, 10), (0, 10))
    assert parse_lengths("4,2;0,3", 1) == ((4, 2), (0, 3))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"inner": "recycling"}, "cannot draft for"),
        ({"inner": "draft-model"}, "cannot draft"),
        ({"lengths": "5"}, "2 rows of"),
        ({"lengths": "5,x;0,1"}, "rows of numbers"),
        ({"lengths": "0,0;0,1"}, "at least one"),
        ({"lengths": "99,0;0,1"}, "0 to 64"),
    ],
)
def test_bad_cascades_are_refused(models: tuple[Any, Any], settings: dict[str, Any], reason: str) -> None:
    """Guards against inner drafters that need what a draft model cannot give, before the first request."""
    with pytest.raises(UsageError, match=reason):
        Speculator.from_transformers(
            tiny_model("llama"), method="cs-drafting", draft_model=models[0], settings=settings
        )
