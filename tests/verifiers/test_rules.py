"""Acceptance rules: known mistakes of the field, and what surrounds a rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper

from speculant.core.engine import Pass
from speculant.core.errors import UnsupportedError
from speculant.core.tree import DraftTree, Proposal
from speculant.engines.hf.sampling.sampler import DeviceSampler, HostSampler, SamplingPlan
from speculant.registry import VERIFIERS, build_verifier
from speculant.verifiers.block import BlockVerification
from speculant.verifiers.forest import Forest, draw, residual, without
from speculant.verifiers.k_seq import KSeq
from speculant.verifiers.rule import RuleVerifier
from speculant.verifiers.speculative_sampling import SpeculativeSampling, recursive_rejection
from speculant.verifiers.thresholds import Blockwise, Rollback, TopBeta, TypicalAcceptance
from speculant.verifiers.traversal import TraversalVerification
from trees import make_tree, random_draft

ALMOST_ONE = 1 - 2**-53
VOCABULARY = 12


def sampled(tokens: list[int], parents: list[int], q: Any, **marks: Any) -> DraftTree:
    """Return a draft whose nodes were drawn from the rows of q."""
    tree = make_tree(tokens, parents)
    return DraftTree(tree.tokens, tree.parents, tree.weights, Proposal(torch.as_tensor(q), **marks))


def verify(verifier: RuleVerifier, trees: list[DraftTree], p: torch.Tensor, uniforms: float) -> Any:
    """Return the outcome with the same uniform number everywhere."""
    size = max(len(tree) for tree in trees)
    return verifier.rule(Forest.of(trees, p), p, torch.full((len(trees), size), uniforms, dtype=torch.float64))


def test_two_candidates_of_one_place_are_not_tested_independently() -> None:
    """Guards the residual: p = (.5, .5), q = (1, 0), token 0 drawn twice, would come out with .75 instead of .5."""
    p = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    forest = Forest.of([sampled([0, 0], [-1, -1], [[1.0, 0.0]] * 3)], p)
    choice = recursive_rejection(forest, torch.tensor([0]), p, torch.tensor([[0.75, 0.0]], dtype=torch.float64))
    assert choice.taken.tolist() == [-1]
    assert choice.rest.tolist() == [[0, 1]]


def test_chosen_tokens_are_not_treated_as_sampled() -> None:
    """Guards one-hot drafts: a chosen token is accepted with p, not with p / q of what it was never drawn from."""
    p = torch.tensor([[[0.3, 0.7]] * 2], dtype=torch.float64)
    q = [[0.1, 0.9]] * 2
    assert verify(SpeculativeSampling(), [sampled([0], [-1], q)], p, 0.5).rows.tolist() == [1]
    marked = sampled([0], [-1], q, chosen=np.array([True]))
    assert verify(SpeculativeSampling(), [marked], p, 0.5).rows.tolist() == [0]
    assert verify(SpeculativeSampling(), [marked], p, 0.29).rows.tolist() == [1]


def test_ratios_are_not_taken_in_bfloat16() -> None:
    """Guards p / q between bfloat16's steps, equal after rounding and so never rejected; q comes in any type."""
    p = torch.tensor([[0.3, 0.7]], dtype=torch.float64)
    q = torch.tensor([[0.3008, 0.6992]])
    assert torch.equal(p.bfloat16(), q.bfloat16())
    forest = Forest.of([sampled([0], [-1], q)], p)
    assert forest.q.dtype == p.dtype
    uniforms = torch.tensor([[ALMOST_ONE]], dtype=torch.float64)
    assert recursive_rejection(forest, torch.tensor([0]), p, uniforms).taken.tolist() == [-1]
    assert Forest.of([sampled([0], [-1], q.bfloat16())], p).q.dtype == p.dtype


def test_a_residual_without_mass_is_p() -> None:
    """Guards rounding: where nothing is left of p, a token can be drawn all the same."""
    p = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    assert residual(p, torch.tensor([[0.6, 0.3, 0.1]], dtype=torch.float64)).tolist() == [[0, 0, 1]]
    assert torch.equal(residual(p, p), p)
    assert torch.equal(without(torch.tensor([[0.0, 1.0]]), torch.tensor([1])), torch.tensor([[0.0, 1.0]]))


@pytest.mark.parametrize("verifier", [SpeculativeSampling(), TraversalVerification(), BlockVerification()])
def test_padding_is_never_accepted_as_token_0(verifier: RuleVerifier) -> None:
    """Guards batches: p holds nothing but token 0, yet the shorter draft ends where it ends."""
    p = torch.zeros(3, 4, 5, dtype=torch.float64)
    p[..., 0] = 1
    trees = [make_tree([0], [-1]), make_tree([0, 0, 0], [-1, 0, 1]), DraftTree.empty()]
    outcome = verify(verifier, trees, p, 0.0)
    assert outcome.rows.tolist() == [1, 3, 0]
    assert outcome.rest.argmax(1).tolist() == [0, 0, 0]


def test_acceptance_numbers_are_fresh_every_round() -> None:
    """Guards re-seeding inside the loop: equal numbers in every round would correlate the rounds of a text."""
    sampler = HostSampler(torch.tensor([[1]]), SamplingPlan(sample=True, generator=torch.Generator().manual_seed(1)))
    first, second = sampler.uniforms(4), sampler.uniforms(4)
    assert not torch.equal(first, second)
    assert first.dtype == torch.float64
    assert bool(((first >= 0) & (first < 1)).all())


def test_tokens_are_drawn_by_their_probability() -> None:
    """Guards the ends of the inverse distribution: impossible tokens are never drawn, whatever the number."""
    p = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]] * 5)
    numbers = torch.tensor([0.0, 0.2499, 0.25, ALMOST_ONE, 1.0], dtype=torch.float64)
    assert draw(p, numbers).tolist() == [1, 1, 3, 3, 3]
    assert draw(2 * p, numbers).tolist() == [1, 1, 3, 3, 3]


@pytest.mark.parametrize("seed", range(5))
def test_the_walk_on_the_host_is_the_rule_on_the_device(seed: int) -> None:
    """Guards the two ways of running a rule among siblings: the same numbers lead to the same walk."""
    random = np.random.default_rng(seed)
    tree = random_draft(random, 7, vocabulary=VOCABULARY)
    logits = torch.tensor(random.normal(size=(8, VOCABULARY)), dtype=torch.float32)
    plan = SamplingPlan(sample=True, processors=[TemperatureLogitsWarper(0.7)])
    verifier, walks = SpeculativeSampling(), []
    for kind in (HostSampler, DeviceSampler):
        sampler = kind(torch.tensor([[1, 2]]), plan)
        sampler.uniforms = lambda n: torch.full((n,), 0.4, dtype=torch.float64)  # type: ignore[method-assign]
        work = verifier.prepare(tree, Pass(logits=logits), sampler)
        assert (work is None) == (kind is HostSampler)
        decided = None if work is None else verifier.decide([work])[0].tolist()
        walks.append(verifier.walk(tree, decided, sampler))
        assert sampler.tokens == walks[-1].tokens
    assert walks[0] == walks[1]


@pytest.mark.parametrize("name", [name for name in VERIFIERS if name not in ("k-seq", "block", "contrastive")])
def test_greedy_decoding_follows_the_argmax(name: str) -> None:
    """Guards temperature 0, where every lossless rule is the argmax, whatever numbers are drawn."""
    logits = torch.eye(VOCABULARY)[[3, 5, 7, 1]] * 9
    tree = make_tree([3, 4, 5], [-1, -1, 0])
    verifier = build_verifier("mix", name, lossy=True)
    sampler = HostSampler(torch.tensor([[1]]), SamplingPlan())
    work = verifier.prepare(tree, Pass(logits=logits), sampler)
    decided = None if work is None else verifier.decide([work])[0].tolist()
    walk = verifier.walk(tree, decided, sampler)
    assert walk.tokens == [3, 5, 1]
    assert walk.path == [0, 2]


def test_processors_that_look_at_the_text_need_a_walk() -> None:
    """Guards rules over whole drafts: what a processor would say of text that never comes is not asked for."""
    plan = SamplingPlan(sample=True, processors=[RepetitionPenaltyLogitsProcessor(1.5)])
    tree, logits = make_tree([3], [-1]), Pass(logits=torch.zeros(2, VOCABULARY))
    with pytest.raises(UnsupportedError, match="sample-then-follow"):
        TraversalVerification().prepare(tree, logits, HostSampler(torch.tensor([[1]]), plan))
    assert SpeculativeSampling().prepare(tree, logits, HostSampler(torch.tensor([[1]]), plan)) is None


def test_drafts_of_another_kind_are_refused() -> None:
    """Guards K-SEQ and block verification, which are exact only for what they are made for."""
    with pytest.raises(UnsupportedError, match="with replacement"):
        KSeq().check(make_tree([0], [-1]))
    with pytest.raises(UnsupportedError, match="with replacement"):
        KSeq().check(sampled([0], [-1], [[0.5, 0.5]], drawn="distinct"))
    with pytest.raises(UnsupportedError, match="chains"):
        BlockVerification().check(make_tree([0, 1], [-1, -1]))


def test_thresholds() -> None:
    """Guards the lossy rules' formulas on one distribution: who passes, and that the deepest path is taken."""
    p = torch.tensor([[[0.6, 0.3, 0.08, 0.02]] * 4], dtype=torch.float64)
    tree = make_tree([1, 2, 0], [-1, -1, 1])
    rows = lambda verifier: verify(verifier, [tree], p, 0.5).rows.tolist()  # noqa: E731
    assert rows(TypicalAcceptance(epsilon=0.09, delta=0.3)) == [1]  # 0.3 > 0.09, 0.08 is not
    assert rows(TypicalAcceptance(epsilon=0.07, delta=0.3)) == [3]
    assert rows(TopBeta(beta=2, gap=1.0)) == [1]
    assert rows(TopBeta(beta=2, gap=0.5)) == [0]
    assert rows(Blockwise(k=3)) == [3]
    assert rows(Blockwise(distance=1)) == [1]
    assert rows(Blockwise(minimum=2)) == [3]
    assert rows(Rollback(threshold=2.0)) == [1]
    assert rows(Rollback(threshold=3.0)) == [3]


@pytest.mark.parametrize("name", [name for name in VERIFIERS if name != "contrastive"])
def test_without_a_draft_a_token_of_p_is_drawn(name: str) -> None:
    """Guards the prompt's pass and rounds that draft nothing, under every rule."""
    logits = torch.full((1, VOCABULARY), -9.0).index_fill(1, torch.tensor([4]), 30.0)
    for sample in (False, True):
        if sample and name == "greedy":
            continue
        verifier = VERIFIERS[name].build()
        sampler = HostSampler(torch.tensor([[1]]), SamplingPlan(sample=sample))
        work = verifier.prepare(DraftTree.empty(), Pass(logits=logits), sampler)
        decided = None if work is None else verifier.decide([work])[0].tolist()
        assert verifier.walk(DraftTree.empty(), decided, sampler).tokens == [4]
