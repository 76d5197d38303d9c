"""The two samplers draw what transformers' plain `generate` draws, and leave the random stream where it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria
from transformers.generation import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from speculant.core.engine import Pass
from speculant.core.tree import DraftTree
from speculant.core.verifier import Walk
from speculant.engines.hf.sampling.output_processors import LogitBias
from speculant.engines.hf.sampling.sampler import ROW_WISE, DeviceSampler, HostSampler, SamplingPlan, make_sampler
from speculant.verifiers.sample_then_follow import SampleThenFollow
from trees import make_tree, random_draft

VOCABULARY = 6
Kind = type[HostSampler]
WARPERS: dict[str, Callable[[], list[Any]]] = {
    "plain": list,
    "usual": lambda: [TemperatureLogitsWarper(0.8), TopKLogitsWarper(4), TopPLogitsWarper(0.9)],
    "min-p": lambda: [TemperatureLogitsWarper(1.7), MinPLogitsWarper(0.1)],
    "typical": lambda: [TypicalLogitsWarper(0.8)],
    "cut": lambda: [EpsilonLogitsWarper(0.05), EtaLogitsWarper(0.05)],
    "biased": lambda: [LogitBias({1: 3.0, 4: -100.0}, torch.device("cpu")), TemperatureLogitsWarper(0.7)],
}


PROMPT = torch.tensor([[1, 2]])


def planned(kind: Kind, **options: Any) -> HostSampler:
    """Return a sampler of a text with a prompt of two tokens."""
    return kind(PROMPT, SamplingPlan(**{"sample": True, **options}))


def follow(sampler: HostSampler, logits: Tensor, tree: DraftTree) -> Walk:
    """Walk a tree as the round does."""
    rule = SampleThenFollow()
    prepared = rule.prepare(tree, Pass(logits=logits), sampler)
    walk = rule.walk(tree, None if prepared is None else prepared.tolist(), sampler)
    sampler.end_round()
    return walk


def play(sampler: HostSampler, rounds: int, seed: int) -> list[int]:
    """Run rounds over random logits and drafts; both depend on the round alone."""
    random = np.random.default_rng(seed)
    for _ in range(rounds):
        tree = random_draft(random, int(random.integers(12)), VOCABULARY)
        logits = torch.from_numpy(random.normal(size=(len(tree) + 1, VOCABULARY), scale=2).astype(np.float32))
        if follow(sampler, logits, tree).ended:
            break
    return sampler.tokens


@pytest.mark.parametrize("own", [True, False], ids=["own generator", "default generator"])
@pytest.mark.parametrize("warpers", WARPERS)
def test_drawing_on_the_device_is_drawing_on_the_host(warpers: str, own: bool) -> None:
    """Choosing at every row ahead gives the same tokens and the same random stream afterwards."""
    for seed in range(4):
        results = []
        for kind in (HostSampler, DeviceSampler):
            torch.manual_seed(seed)
            generator = torch.Generator().manual_seed(seed) if own else None
            sampler = planned(kind, processors=WARPERS[warpers](), generator=generator)
            text = play(sampler, rounds=12, seed=seed)
            state = generator.get_state() if generator else torch.get_rng_state()
            results.append((text, state.tolist(), torch.rand(1).item()))
        assert results[0] == results[1]


def test_drawing_on_the_device_is_plain_multinomial() -> None:
    """Along a long accepted chain the tokens are those of one `torch.multinomial` call each."""
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(0))
    plain = torch.Generator().manual_seed(7)
    expected = [int(torch.multinomial(row[None].softmax(-1), 1, generator=plain)) for row in logits]
    generator = torch.Generator().manual_seed(7)
    sampler = planned(DeviceSampler, generator=generator)
    tree = make_tree(expected[:8], range(-1, 7))
    walk = follow(sampler, logits, tree)
    assert (walk.path, walk.tokens) == (list(range(8)), expected)
    assert torch.equal(generator.get_state(), plain.get_state())


@pytest.mark.parametrize("kind", [HostSampler, DeviceSampler])
def test_greedy(kind: Kind) -> None:
    """Without sampling the best token is taken and no random number is drawn."""
    torch.manual_seed(3)
    before = torch.get_rng_state()
    sampler = planned(kind, sample=False)
    logits = torch.tensor([[0.0, 2.0, 1.0], [5.0, 0.0, 0.0]]).to(torch.bfloat16)
    tree = make_tree([1], [-1])
    assert follow(sampler, logits, tree) == Walk([0], [1, 0], False)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", [HostSampler, DeviceSampler])
@pytest.mark.parametrize("sample", [False, True])
def test_end_of_text_inside_a_draft(kind: Kind, sample: bool) -> None:
    """The text ends with the ending token, although the draft goes on; later nodes draw nothing."""
    generator = torch.Generator().manual_seed(5)
    sampler = planned(kind, ends=frozenset({3, 5}), max_length=100, sample=sample, generator=generator)
    tree = make_tree([4, 3, 4], [-1, 0, 1])
    assert follow(sampler, torch.eye(VOCABULARY)[[4, 3, 4, 4]] * 1e4, tree) == Walk([0], [4, 3], True)
    assert sampler.stopped
    assert sampler.ids().tolist() == [[1, 2, 4, 3]]
    twice = torch.Generator().manual_seed(5)
    if sample:
        for _ in range(2):
            torch.multinomial(torch.ones(1, VOCABULARY), 1, generator=twice)
    assert torch.equal(generator.get_state(), twice.get_state())


@pytest.mark.parametrize("kind", [HostSampler, DeviceSampler])
def test_length_limit_inside_a_draft(kind: Kind) -> None:
    """The text stops at its longest length, in the middle of a right draft."""
    sampler = planned(kind, max_length=5, sample=False)
    assert sampler.room == 3
    tree = make_tree([1, 1, 1, 1], [-1, 0, 1, 2])
    assert follow(sampler, torch.eye(VOCABULARY)[[1] * 5], tree) == Walk([0, 1], [1, 1, 1], True)
    assert (sampler.room, sampler.stopped) == (0, False)


def test_no_limit_leaves_room() -> None:
    """Without a length limit there is always room."""
    assert planned(HostSampler).room > 1 << 20


class Counting(LogitsProcessor):
    """A processor with state: it must see every token once, on the true prefix."""

    def __init__(self) -> None:
        self.prefixes: list[list[int]] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        assert scores.shape == (1, VOCABULARY)
        self.prefixes.append(input_ids[0].tolist())
        return scores + len(self.prefixes) % 3


class Asking(StoppingCriteria):
    """A criterion with state, after others that may already have ended the text."""

    def __init__(self) -> None:
        self.prefixes: list[list[int]] = []
        self.scores: list[Any] = []

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        self.prefixes.append(input_ids[0].tolist())
        self.scores.append(scores)
        return torch.tensor([len(self.prefixes) == 20])


def test_stateful_processors_and_criteria_see_each_token_once() -> None:
    """One call per token in order, with the committed text and nothing of rejected drafts in it."""
    processor, criterion = Counting(), Asking()
    sampler = planned(HostSampler, processors=[processor], max_length=50, criteria=[criterion])
    text = play(sampler, rounds=40, seed=2)
    assert len(text) == 20
    assert processor.prefixes == [[1, 2, *text[:i]] for i in range(20)]
    assert criterion.prefixes == [[1, 2, *text[: i + 1]] for i in range(20)]
    assert set(criterion.scores) == {None}


def test_criteria_are_asked_although_the_text_has_ended() -> None:
    """A criterion that keeps state sees the last token, too, as in plain decoding."""
    criterion = Asking()
    sampler = planned(HostSampler, max_length=3, criteria=[criterion])
    assert sampler.commit(4) is True
    assert criterion.prefixes == [[1, 2, 4]]


@pytest.mark.parametrize("answer", [True, False, torch.tensor([True]), torch.tensor([False])])
def test_criteria_may_answer_with_a_plain_bool(answer: Any) -> None:
    """Guards users' functions, which transformers' own loop takes with either answer."""
    sampler = planned(HostSampler, criteria=[lambda *_: answer])
    assert sampler.commit(4) is bool(answer)


@pytest.mark.parametrize("sample", [False, True])
def test_scores_are_kept(sample: bool) -> None:
    """Per token the raw and the processed logits of its own row, and criteria are given the latter."""
    criterion = Asking()
    sampler = planned(
        HostSampler,
        processors=[TemperatureLogitsWarper(0.5), TopKLogitsWarper(1)],
        criteria=[criterion],
        sample=sample,
        keep_scores=True,
        keep_logits=True,
    )
    logits = torch.tensor([[0.0, 2.0, 1.0], [7.0, 0.0, 6.0], [0.0, 1.0, 3.0]])
    tree = make_tree([2, 1], [-1, -1])
    assert follow(sampler, logits, tree) == Walk([1], [1, 2], False)
    assert torch.equal(torch.cat(sampler.logits), logits[[0, 2]])
    less = -float("inf")
    assert torch.cat(sampler.scores).tolist() == [[less, 4.0, less], [less, less, 6.0]]
    assert [len(scores) for scores in criterion.scores] == [1, 2]
    assert all(raw.dtype == torch.float32 for raw in sampler.logits)


def test_processors_that_write_in_place_do_not_reach_the_pass() -> None:
    """The target's logits stay as they were, whatever a processor does to its copy."""

    class InPlace(LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            scores[:, 1] = -100.0
            return scores

    logits = torch.tensor([[0.0, 2.0, 1.0]])
    sampler = planned(HostSampler, processors=[InPlace()], sample=False)
    sampler.load(logits)
    assert sampler.draw(0) == 2
    assert logits.tolist() == [[0.0, 2.0, 1.0]]


class Accelerated:
    """Stands in for a prompt on an accelerator, of which the choice of a sampler looks at the device alone."""

    shape = (1, 2)
    device = torch.device("cuda")


@pytest.mark.parametrize(
    "options",
    [
        {"processors": [RepetitionPenaltyLogitsProcessor(1.2)]},
        {"processors": [Counting()]},
        {"criteria": [Asking()]},
        {"keep_scores": True},
        {"keep_logits": True},
    ],
)
def test_whatever_depends_on_the_prefix_is_drawn_on_the_host(options: dict[str, Any]) -> None:
    """Guards processors, criteria and kept rows that drawing ahead could not honour."""
    prompt: Any = Accelerated()
    assert type(make_sampler(prompt, SamplingPlan(sample=True, **options))) is HostSampler
    assert type(make_sampler(prompt, SamplingPlan(sample=True))) is DeviceSampler


def test_a_subclass_of_a_warper_may_depend_on_the_prefix() -> None:
    """Only the known classes themselves are taken for row-wise."""

    class Mine(TemperatureLogitsWarper):
        pass

    prompt: Any = Accelerated()
    assert type(make_sampler(prompt, SamplingPlan(sample=True, processors=[Mine(0.5)]))) is HostSampler
    assert {type(warper) for make in WARPERS.values() for warper in make()} == set(ROW_WISE)


@pytest.mark.parametrize("sample", [True, False])
def test_the_distribution_is_what_draws_come_from(sample: bool) -> None:
    """Guards rules that test q against p: warped, normalised, in float64, one-hot where decoding is greedy."""
    warpers = WARPERS["usual"]()
    sampler = planned(HostSampler, processors=warpers, sample=sample)
    logits = torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(2))
    sampler.load(logits)
    p = sampler.distribution(0)
    scores = logits
    for warper in warpers:
        scores = warper(PROMPT, scores)
    expected = scores[0].double().softmax(-1) if sample else torch.eye(VOCABULARY, dtype=torch.float64)[scores.argmax()]
    torch.testing.assert_close(p, expected)
    before = torch.get_rng_state()
    rows = sampler.probabilities()
    assert rows is not None
    torch.testing.assert_close(rows[0], scores[0].softmax(-1))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_empty_draft_is_a_plain_step() -> None:
    """Prefill and drafts of no nodes draw one token with one step of the random stream."""
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    drawn = []
    for kind, generator in zip((HostSampler, DeviceSampler), generators, strict=True):
        drawn.append(follow(planned(kind, generator=generator), torch.zeros(1, 50), DraftTree.empty()))
    assert drawn[0] == drawn[1]
    assert torch.equal(*(generator.get_state() for generator in generators))


def test_end_tokens_count_beside_criteria() -> None:
    """A criterion that goes on does not undo an ending token."""
    sampler = planned(HostSampler, ends=frozenset({3}), criteria=[lambda *_: False], sample=False)
    assert follow(sampler, torch.eye(VOCABULARY)[[3]], make_tree([], [])) == Walk([], [3], True)
    assert sampler.stopped
