"""SpecInfer with several draft models: the merge of their trees, and the distribution of texts verified with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from distributions import SHAPES, distribution_of_drafts, drafts, model, own_distribution
from models import deep_model, perturbed
from pairwise import paired
from speculant import Speculator
from speculant.core.drafter import Budget, SessionRequest, Verified
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.sampler import Sampling
from speculant.core.tree import DraftTree
from speculant.drafters.models.draft_model import SpecInferDrafter, WidthsSettings
from speculant.drafters.models.merged import merge_drawn, merged_parents
from speculant.engines.hf.engine import HFEngine
from speculant.verifiers.block import BlockVerification
from speculant.verifiers.k_seq import KSeq
from speculant.verifiers.speculative_sampling import SpeculativeSampling
from speculant.verifiers.traversal import TraversalVerification
from trees import leaves, paths_of

PROMPT = [5, 9, 14, 3, 8]


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any, Any]:
    """A target and two draft models, all of whose distributions differ."""
    return deep_model("llama"), perturbed(deep_model("llama"), 0.2), perturbed(deep_model("llama"), 0.4)


def merged_drafts(shapes: tuple[str, str], seed: int, *, zeros: bool) -> list[tuple[DraftTree, float]]:
    """Return every merged draft of two models with its probability."""
    one, other = (
        drafts(model(seed + place, zeros=zeros), SHAPES[shape], "iid") for place, shape in enumerate(shapes, start=30)
    )
    return [(merge_drawn([a, b]), p * q) for a, p in one for b, q in other]


@pytest.mark.parametrize(
    ("first", "second", "rule", "zeros"),
    paired(
        [("width 2", "width 2"), ("chain of 3", "chain of 1"), ("uneven", "chain of 1")],
        [SpeculativeSampling().rule, TraversalVerification().rule],
        [False, True],
    ),
)
def test_texts_have_the_targets_distribution(first: str, second: str, rule: Any, zeros: bool) -> None:
    """Guards losslessness: every draft of both models and every outcome of every test, to 1e-9."""
    p = model(1, zeros=zeros)
    texts, accepted = distribution_of_drafts(rule, p, merged_drafts((first, second), 0, zeros=zeros))
    assert texts == pytest.approx(own_distribution(p, len(next(iter(texts)))), abs=1e-9)
    assert accepted > distribution_of_drafts(rule, p, drafts(model(30, zeros=zeros), SHAPES[first], "iid"))[1]


def test_dropping_equal_candidates_would_bias_the_text() -> None:
    """Guards the second of two equal candidates, which is never accepted: without it, the distribution is different."""
    p, one, other = model(7), model(30), model(31)
    both = [(merge_drawn([a, b]), x * y) for a, x in drafts(one, [-1], "iid") for b, y in drafts(other, [-1], "iid")]
    without = [
        (merge_drawn([a]) if a.tokens[0] == b.tokens[0] else merge_drawn([a, b]), x * y)
        for a, x in drafts(one, [-1], "iid")
        for b, y in drafts(other, [-1], "iid")
    ]
    rule, wanted = SpeculativeSampling().rule, own_distribution(p, 2)
    assert distribution_of_drafts(rule, p, both)[0] == pytest.approx(wanted, abs=1e-9)
    biased = distribution_of_drafts(rule, p, without)[0]
    assert max(abs(biased[text] - chance) for text, chance in wanted.items()) > 0.001


def test_rules_that_know_one_q_refuse_several() -> None:
    """Guards rules that would read the wrong distribution."""
    tree = merge_drawn([drafts(model(seed), [-1], "iid")[0][0] for seed in (30, 31)])
    for rule in (KSeq(), BlockVerification()):
        with pytest.raises(UnsupportedError, match=r"several|branches"):
            rule.check(tree)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_each_models_own_paths_are_in_the_tree(models: tuple[Any, Any, Any], temperature: float) -> None:
    """Guards the merge over rounds: each model stays in step, draws from its own q, and by a seed of its own."""
    drafting = models[1:]
    openers = [lambda prompt, m=m: HFEngine(m).open(torch.from_numpy(prompt).long()[None]) for m in drafting]
    settings = WidthsSettings(widths="2,1,1")
    start = SessionRequest(prompt=np.array(PROMPT[:-1], np.int32), sampling=Sampling(temperature=temperature))
    merged = SpecInferDrafter(openers, vocabulary=61, settings=settings).open(start)
    seeds = [np.random.SeedSequence(start.seed.entropy, spawn_key=(place,)) for place in range(2)]
    alone = [
        SpecInferDrafter(opened, vocabulary=61, settings=settings).open(replace(start, seed=seed))
        for opened, seed in zip(openers, seeds, strict=True)
    ]
    text = Verified(tree=DraftTree.empty(), path=np.empty(0, np.int32), tokens=np.array(PROMPT[-1:], np.int32))
    for _ in range(3):
        for session in (merged, *alone):
            session.observe(text)
        tree = merged.propose(Budget(nodes=12, depth=3))
        assert (tree.proposal is None) == (not temperature)
        drawn = [each.propose(Budget(nodes=6, depth=3)) for each in alone]
        assert set(paths_of(tree)) == {path for each in drawn for path in paths_of(each)}
        assert len(tree) == sum(map(len, drawn)) or not temperature
        if tree.proposal is not None:
            distributions = [q for each in drawn for q in (each.proposal.q[each.parents + 1])]  # type: ignore[union-attr]
            torch.testing.assert_close(
                tree.proposal.q[tree.proposal.q_rows], torch.stack(distributions), atol=1e-5, rtol=1e-4
            )
        path = tree.path(int(np.argmax(tree.depths()))).tolist()
        text = Verified(tree=tree, path=np.array(path), tokens=np.array([*tree.tokens[path], 7], np.int32))
    assert len(leaves(merged.propose(Budget(nodes=20, depth=3, trees=False)))) == 1
    assert len(merged.propose(Budget(nodes=1, depth=3))) == 1


def test_several_models_are_for_the_method_that_merges_them(models: tuple[Any, Any, Any]) -> None:
    """Guards the list of draft models: text stays the target's, sampled text has a seed, other methods refuse it."""
    target, *drafting = models
    plain = target.generate(torch.tensor([PROMPT]), max_new_tokens=14, do_sample=False)[0, 5:].tolist()
    for nodes in (12, "auto"):
        speculator = Speculator.from_transformers(target, method="specinfer", draft_model=drafting, nodes=nodes)
        assert speculator.generate(PROMPT, max_new_tokens=14, temperature=0).ids == plain
        sampled = [speculator.generate(PROMPT, max_new_tokens=16, temperature=0.6, seed=3) for _ in range(2)]
        assert nodes == "auto" or sampled[0].ids == sampled[1].ids
        assert nodes == "auto" or sampled[0].stats.accepted > 0
    with pytest.raises(UsageError, match="takes one draft model"):
        Speculator.from_transformers(target, method="mcsd", draft_model=drafting)


def test_the_forecast_counts_trees_that_take_turns() -> None:
    """Guards sizes: parents of two trees of widths 2, 1, whose nodes are listed in turn."""
    assert merged_parents([-1, -1, 0, 1], 2, 7) == [-1, -1, -1, -1, 0, 1, 2]
