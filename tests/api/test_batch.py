"""Every text of a batch is the one that its request gives alone, whoever else is in the batch and whatever fails."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from guesses import LENGTHS, Guesses, alone, guessing, prompts
from models import tiny_model
from pairwise import in_turn
from processors import Shifting
from speculant import Speculator
from speculant.api.batch import BatchError
from speculant.core.errors import OutOfMemoryError, UsageError

GREEDY: dict[str, Any] = {"max_new_tokens": 20, "temperature": 0}
ARCHITECTURES = ["llama", "qwen3", "gemma3", "mistral", "mixtral", "phi3", "gpt2", "gpt_neox", "bloom"]


class Breaking(LogitsProcessor):
    """Fails at a length."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] >= 21:
            raise ZeroDivisionError("a processor's bug")
        return scores


@pytest.fixture(scope="module")
def model() -> Any:
    """Return the random model of the tests that are not about architectures."""
    return tiny_model("llama")


@pytest.fixture(scope="module")
def texts(model: Any) -> list[list[int]]:
    """Return the text of 20 tokens of each request."""
    return alone(model, [GREEDY] * len(LENGTHS))


WAYS = [("sdpa", 12), ("sdpa", "auto"), ("eager", 12)]


@pytest.mark.parametrize(("name", "attention", "nodes"), in_turn(ARCHITECTURES, WAYS, whole=1))
def test_texts_are_those_of_requests_alone(name: str, attention: str, nodes: int | str) -> None:
    """Guards positions, masks and caches of ragged passes over every architecture, past sliding windows too."""
    model = tiny_model(name, attention)
    options = [{"max_new_tokens": 18, "temperature": 0}] * len(LENGTHS)
    texts = alone(model, options)
    speculator = guessing(model, texts, nodes=nodes)
    batch = speculator.batch(4)
    generations = [batch.add(prompt, **own) for prompt, own in zip(prompts(), options, strict=True)]
    pieces: dict[int, list[int]] = {}
    for generation, piece in batch:
        pieces.setdefault(id(generation), []).extend(piece.tokens)
    assert [generation.result.ids for generation in generations] == texts
    assert [pieces[id(generation)] for generation in generations] == texts
    assert all(generation.done and generation.result.finish_reason in ("stop", "length") for generation in generations)
    assert batch.stats.tokens == sum(map(len, texts))
    assert batch.stats.rounds < sum(map(len, texts)) / (3 if nodes == 12 else 2)  # "auto" may find that nothing pays
    assert speculator.drafter.opened == speculator.drafter.closed == len(LENGTHS)
    if nodes == 12:
        assert batch.stats.tokens > 1.3 * batch.stats.sequences


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_every_request_has_its_own_options(name: str) -> None:
    """Guards samplers, random streams, stateful processors and lengths, none of which another request may touch."""
    model = tiny_model(name)

    def options() -> list[dict[str, Any]]:
        return [
            {"max_new_tokens": 25, "temperature": 0},
            {"max_new_tokens": 40, "temperature": 0.7, "seed": 5},
            {"max_new_tokens": 3, "temperature": 1.2, "top_p": 0.9, "seed": 5},
            {
                "max_new_tokens": 30,
                "temperature": 0.8,
                "seed": 1,
                "logits_processor": [Shifting()],
            },
            {"max_new_tokens": 30, "temperature": 0, "repetition_penalty": 1.3},
            {"max_new_tokens": 1, "temperature": 0},
        ]

    texts = alone(model, options())
    speculator = guessing(model, texts)
    batch = speculator.batch(8)
    generations = [batch.add(prompt, **own) for prompt, own in zip(prompts(), options(), strict=True)]
    for _ in batch:
        pass
    assert [generation.result.ids for generation in generations] == texts


def test_requests_join_and_leave_between_rounds(model: Any, texts: list[list[int]]) -> None:
    """Guards continuous batching: late requests, removed ones, and places passed on."""
    speculator = guessing(model, texts)
    batch = speculator.batch(2)
    asked = prompts()
    generations = [batch.add(asked[0], **GREEDY)]
    for _ in range(3):
        batch.step()
    generations += [batch.add(prompt, **GREEDY) for prompt in asked[1:]]
    batch.step()
    batch.remove(generations[1])
    batch.remove(generations[5])
    assert generations[1].result.finish_reason == "unfinished"
    assert len(batch) == 4
    for _ in batch:
        pass
    for place in (0, 2, 3, 4):
        assert generations[place].result.ids == texts[place]
    said = generations[1].result.ids
    assert 0 < len(said) < 20
    assert said == texts[1][: len(said)]
    assert generations[5].result.ids == []
    assert speculator.drafter.opened == speculator.drafter.closed == 5  # one never got a place


def test_a_failing_request_fails_alone(model: Any, texts: list[list[int]]) -> None:
    """Guards the others where a drafter or a processor breaks in the middle of a text."""
    asked = prompts()
    speculator = guessing(model, texts, failing=[tuple(asked[3])])
    batch = speculator.batch(4)
    breaking = {"logits_processor": LogitsProcessorList([Breaking()])}
    generations = [
        batch.add(prompt, **GREEDY, **(breaking if place == 0 else {})) for place, prompt in enumerate(asked)
    ]
    for _ in batch:
        pass
    assert isinstance(generations[0].error, ZeroDivisionError)
    assert isinstance(generations[3].error, ArithmeticError)
    for place in (1, 2, 4, 5):
        assert generations[place].error is None
        assert generations[place].result.ids == texts[place]
    for place in (0, 3):
        said = generations[place].result.ids
        assert generations[place].result.finish_reason == "error"
        assert said == texts[place][: len(said)] != []
    assert speculator.drafter.opened == speculator.drafter.closed == len(LENGTHS)


def test_a_pass_that_does_not_fit_loses_nothing(
    model: Any, texts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards what was said, and the caches, where the device has no room for a pass: with fewer requests it goes on."""
    batch = guessing(model, texts).batch(6)
    generations = [batch.add(prompt, **GREEDY) for prompt in prompts()]
    batch.step()
    forward, layer = model.forward, model.model.layers[1].mlp
    broken = layer.forward

    def full(*args: Any) -> Any:
        raise torch.OutOfMemoryError("no room")

    layer.forward = full
    with pytest.raises(OutOfMemoryError, match="ran out of memory"):
        batch.step()
    layer.forward = broken
    assert model.forward == forward
    batch.remove(generations[2])
    for _ in batch:
        pass
    for place in (0, 1, 3, 4, 5):
        assert generations[place].result.ids == texts[place]


def test_an_interrupt_leaves_the_caches_whole(model: Any, texts: list[list[int]]) -> None:
    """Guards a next turn on the cache of a text that was stopped in the middle of a round."""
    speculator = guessing(model, texts)

    class Stopping:
        left = 7

        def put(self, ids: Any) -> None:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt

        def end(self) -> None:
            pass

    stream = speculator.stream(prompts()[0], streamer=Stopping(), **GREEDY)
    with pytest.raises(KeyboardInterrupt):
        for _ in stream:
            pass
    said = stream.result.ids
    assert stream.result.cache.get_seq_length() == LENGTHS[0] + len(said) - 1
    speculator.drafter = Speculator.from_transformers(model, method="none").drafter
    turn = speculator.generate(prompts()[0] + said, cache=stream.result.cache, max_new_tokens=20 - len(said))
    assert said + turn.ids == texts[0]


def test_generate_batch_gives_results_in_order_and_says_what_failed(model: Any) -> None:
    """Guards the short way: seeds counted from the given one, results in order, one error that keeps them all."""
    options = [{"max_new_tokens": 20, "temperature": 0.9, "seed": 3 + place} for place in range(len(LENGTHS))]
    texts = alone(model, options)
    speculator = guessing(model, texts)
    results = speculator.generate_batch(prompts(), size=4, max_new_tokens=20, temperature=0.9, seed=3)
    assert [result.ids for result in results] == texts
    speculator.drafter = Guesses(
        {tuple(prompt): text for prompt, text in zip(prompts(), texts, strict=True)}, [tuple(prompts()[1])]
    )
    with pytest.raises(BatchError, match="1 of 6 requests failed, the first is number 2: ArithmeticError") as met:
        speculator.generate_batch(prompts(), size=4, max_new_tokens=20, temperature=0.9, seed=3)
    assert [result.ids for place, result in enumerate(met.value.results) if place != 1] == texts[:1] + texts[2:]
    with pytest.raises(UsageError, match="streamer"):
        speculator.generate_batch(prompts(), streamer=object())
    with pytest.raises(UsageError, match="1 request or more"):
        speculator.batch(0)


def test_a_bad_request_is_refused_when_it_is_added(model: Any) -> None:
    """Guards requests in the batch from one that cannot be decoded."""
    batch = Speculator.from_transformers(model, method="none").batch()
    generation = batch.add([5, 6, 7], max_new_tokens=4)
    with pytest.raises(UsageError, match="num_beams"):
        batch.add([5, 6], num_beams=2)
    with pytest.raises(UsageError, match="empty"):
        batch.add([])
    for _ in batch:
        pass
    assert len(generation.result.ids) == 4


def test_an_attention_of_its_own_is_run_sequence_by_sequence(
    texts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards models that do not go through transformers' attention functions: same texts, and a note that says so."""
    model = tiny_model("llama")
    texts = [text[:8] for text in texts]
    own = type(model.model.layers[0].self_attn).forward

    def stubborn(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = self.config._attn_implementation
        self.config._attn_implementation = "sdpa"
        try:
            return own(self, *args, **kwargs)
        finally:
            self.config._attn_implementation = before

    monkeypatch.setattr(type(model.model.layers[0].self_attn), "forward", stubborn)
    results = guessing(model, texts).generate_batch(prompts(), max_new_tokens=8, temperature=0)
    assert [result.ids for result in results] == texts


def test_caches_go_with_the_requests(model: Any) -> None:
    """Guards long lists of prompts: memory holds the caches of those being decoded, unless they are asked for."""
    speculator = Speculator.from_transformers(model, method="none")
    for keep in (False, True):
        with speculator.batch(2, keep_caches=keep) as batch:
            generations = [batch.add(prompt, max_new_tokens=4, temperature=0) for prompt in prompts()[:3]]
            for _ in batch:
                pass
        for generation in generations:
            assert (generation.result.cache is not None) == keep
            assert bool(generation.sequence.cache.length) == keep
