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
    EosTokenCriteria,
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    MaxLengthCriteria,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from speculant.core.tree import DraftTree
from speculant.engines.hf import sampler as sampling
from speculant.engines.hf.sampler import AllAtOnce, OneByOne, Request, make_sampler
from speculant.verifiers.sample_then_follow import sample_then_follow
from trees import make_tree, random_draft

VOCABULARY = 6
Sampling = type[OneByOne] | type[AllAtOnce]
WARPERS: dict[str, Callable[[], list[Any]]] = {
    "plain": list,
    "usual": lambda: [TemperatureLogitsWarper(0.8), TopKLogitsWarper(4), TopPLogitsWarper(0.9)],
    "min-p": lambda: [TemperatureLogitsWarper(1.7), MinPLogitsWarper(0.1)],
    "typical": lambda: [TypicalLogitsWarper(0.8)],
    "cut": lambda: [EpsilonLogitsWarper(0.05), EtaLogitsWarper(0.05)],
}


def request(**options: Any) -> Request:
    """Make a request with a prompt of two tokens."""
    settings = {"processors": [], "criteria": [], "sample": True, "generator": None, "emitted": [].append}
    return Request(ids=torch.tensor([[1, 2]]), **{**settings, **options})


def show(sampler: OneByOne | AllAtOnce, logits: Tensor, tree: DraftTree) -> None:
    """Let a sampler look at the logits of a pass and receive what it asked for, as the round loop does."""
    choices = sampler.look(logits, tree)
    if choices is not None:
        sampler.receive(choices.tolist())


def play(kind: Sampling, asked: Request, rounds: int, seed: int) -> list[int]:
    """Run rounds over random logits and drafts; both depend on the round alone."""
    random = np.random.default_rng(seed)
    sampler = kind(asked)
    text: list[int] = []
    for _ in range(rounds):
        tree = random_draft(random, int(random.integers(12)), VOCABULARY)
        logits = torch.from_numpy(random.normal(size=(len(tree) + 1, VOCABULARY), scale=2).astype(np.float32))
        show(sampler, logits, tree)
        _, tokens, ended = sample_then_follow(tree, sampler.draw)
        sampler.settle()
        text += tokens
        if ended:
            break
    return text


@pytest.mark.parametrize("own", [True, False], ids=["own generator", "default generator"])
@pytest.mark.parametrize("warpers", WARPERS)
def test_all_at_once_is_one_by_one(warpers: str, own: bool) -> None:
    """Choosing at every row ahead gives the same tokens and the same random stream afterwards."""
    for seed in range(4):
        results = []
        for kind in (OneByOne, AllAtOnce):
            torch.manual_seed(seed)
            generator = torch.Generator().manual_seed(seed) if own else None
            asked = request(processors=WARPERS[warpers](), generator=generator)
            assert AllAtOnce.fits(asked)
            text = play(kind, asked, rounds=12, seed=seed)
            state = generator.get_state() if generator else torch.get_rng_state()
            results.append((text, state.tolist(), torch.rand(1).item()))
        assert results[0] == results[1]


def test_all_at_once_is_plain_multinomial() -> None:
    """Along a long accepted chain the tokens are those of one `torch.multinomial` call each."""
    laws = torch.randn(9, 50, generator=torch.Generator().manual_seed(0))
    plain = torch.Generator().manual_seed(7)
    expected = [int(torch.multinomial(law[None].softmax(-1), 1, generator=plain)) for law in laws]
    generator = torch.Generator().manual_seed(7)
    sampler = AllAtOnce(request(generator=generator))
    tree = make_tree(expected[:8], range(-1, 7))
    show(sampler, laws, tree)
    path, tokens, _ = sample_then_follow(tree, sampler.draw)
    sampler.settle()
    assert (path, tokens) == (list(range(8)), expected)
    assert torch.equal(generator.get_state(), plain.get_state())


@pytest.mark.parametrize("kind", [OneByOne, AllAtOnce])
def test_greedy(kind: Sampling) -> None:
    """Without sampling the best token is taken and no random number is drawn."""
    torch.manual_seed(3)
    before = torch.get_rng_state()
    sampler = kind(request(sample=False))
    logits = torch.tensor([[0.0, 2.0, 1.0], [5.0, 0.0, 0.0]]).to(torch.bfloat16)
    tree = make_tree([1], [-1])
    show(sampler, logits, tree)
    assert sample_then_follow(tree, sampler.draw) == ([0], [1, 0], False)
    sampler.settle()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", [OneByOne, AllAtOnce])
@pytest.mark.parametrize("sample", [False, True])
def test_end_of_text_inside_a_draft(kind: Sampling, sample: bool) -> None:
    """The text ends with the ending token, although the draft goes on; later nodes draw nothing."""
    seen: list[int] = []
    generator = torch.Generator().manual_seed(5)
    criteria = [EosTokenCriteria(torch.tensor([3, 5])), MaxLengthCriteria(100)]
    asked = request(criteria=criteria, sample=sample, generator=generator, emitted=seen.append)
    sampler = kind(asked)
    tree = make_tree([4, 3, 4], [-1, 0, 1])
    show(sampler, torch.eye(VOCABULARY)[[4, 3, 4, 4]] * 1e4, tree)
    assert sample_then_follow(tree, sampler.draw) == ([0], [4, 3], True)
    sampler.settle()
    assert seen == [4, 3]
    assert asked.ended
    assert asked.true_ids().tolist() == [[1, 2, 4, 3]]
    twice = torch.Generator().manual_seed(5)
    if sample:
        for _ in range(2):
            torch.multinomial(torch.ones(1, VOCABULARY), 1, generator=twice)
    assert torch.equal(generator.get_state(), twice.get_state())


@pytest.mark.parametrize("kind", [OneByOne, AllAtOnce])
def test_length_limit_inside_a_draft(kind: Sampling) -> None:
    """The text stops at its longest length, the smaller of two limits, in the middle of a right draft."""
    asked = request(criteria=[MaxLengthCriteria(9), MaxLengthCriteria(5)], sample=False)
    sampler = kind(asked)
    assert sampler.room == 3
    tree = make_tree([1, 1, 1, 1], [-1, 0, 1, 2])
    show(sampler, torch.eye(VOCABULARY)[[1] * 5], tree)
    assert sample_then_follow(tree, sampler.draw) == ([0, 1], [1, 1, 1], True)
    assert (sampler.room, asked.length) == (0, 5)


def test_no_limit_leaves_room() -> None:
    """Without a length limit there is always room."""
    assert OneByOne(request()).room > 1 << 20


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
    asked = request(processors=[processor], criteria=[MaxLengthCriteria(50), criterion])
    assert not AllAtOnce.fits(asked)
    text = play(OneByOne, asked, rounds=40, seed=2)
    assert len(text) == 20
    assert processor.prefixes == [[1, 2, *text[:i]] for i in range(20)]
    assert criterion.prefixes == [[1, 2, *text[: i + 1]] for i in range(20)]
    assert set(criterion.scores) == {None}


def test_every_criterion_is_asked_even_after_one_ended_the_text() -> None:
    """A criterion that keeps state sees the last token, too, as in plain decoding."""
    criterion = Asking()
    asked = request(criteria=[MaxLengthCriteria(3), criterion])
    assert asked.append(4) is True
    assert criterion.prefixes == [[1, 2, 4]]


@pytest.mark.parametrize("sample", [False, True])
def test_scores_are_kept(sample: bool) -> None:
    """Per token the raw and the processed logits of its own row, and criteria are given the latter."""
    criterion = Asking()
    asked = request(
        processors=[TemperatureLogitsWarper(0.5), TopKLogitsWarper(1)],
        criteria=[criterion],
        sample=sample,
        keep_scores=True,
        keep_raw=True,
    )
    logits = torch.tensor([[0.0, 2.0, 1.0], [7.0, 0.0, 6.0], [0.0, 1.0, 3.0]])
    tree = make_tree([2, 1], [-1, -1])
    sampler = OneByOne(asked)
    show(sampler, logits, tree)
    assert sample_then_follow(tree, sampler.draw) == ([1], [1, 2], False)
    assert torch.equal(torch.cat(asked.raw), logits[[0, 2]])
    less = -float("inf")
    assert torch.cat(asked.scores).tolist() == [[less, 4.0, less], [less, less, 6.0]]
    assert [len(scores) for scores in criterion.scores] == [1, 2]
    assert all(raw.dtype == torch.float32 for raw in asked.raw)


def test_processors_that_write_in_place_do_not_reach_the_pass() -> None:
    """The target's logits stay as they were, whatever a processor does to its copy."""

    class InPlace(LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            scores[:, 1] = -100.0
            return scores

    logits = torch.tensor([[0.0, 2.0, 1.0]])
    sampler = OneByOne(request(processors=[InPlace()], sample=False))
    show(sampler, logits, DraftTree.empty())
    assert sampler.draw(0) == (2, False)
    assert logits.tolist() == [[0.0, 2.0, 1.0]]


@pytest.mark.parametrize(
    "options",
    [
        {"processors": [RepetitionPenaltyLogitsProcessor(1.2)]},
        {"processors": [Counting()]},
        {"criteria": [Asking()]},
        {"keep_scores": True},
        {"keep_raw": True},
    ],
)
def test_all_at_once_leaves_what_it_cannot_honour(options: dict[str, Any]) -> None:
    """Whatever depends on the prefix or wants rows kept goes one by one."""
    assert not AllAtOnce.fits(request(**options))
    assert isinstance(make_sampler(request(**options)), OneByOne)


def test_a_subclass_of_a_warper_may_depend_on_the_prefix() -> None:
    """Only the known classes themselves are taken for row-wise."""

    class Mine(TemperatureLogitsWarper):
        pass

    assert not AllAtOnce.fits(request(processors=[Mine(0.5)]))
    assert {type(warper) for make in WARPERS.values() for warper in make()} == set(sampling.ROW_WISE)


def test_the_empty_draft_is_a_plain_step() -> None:
    """Prefill and drafts of no nodes draw one token with one step of the random stream."""
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    drawn = []
    for kind, generator in zip((OneByOne, AllAtOnce), generators, strict=True):
        sampler = kind(request(generator=generator))
        show(sampler, torch.zeros(1, 50), DraftTree.empty())
        drawn.append(sampler.draw(0))
        sampler.settle()
    assert drawn[0] == drawn[1]
    assert torch.equal(*(generator.get_state() for generator in generators))
