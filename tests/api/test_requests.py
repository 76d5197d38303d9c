"""Requests: what was asked for is honoured or refused, never ignored."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessor, TextIteratorStreamer

from models import VOCABULARY, tiny_model
from speculant import Speculator
from speculant.api.loading import load_model
from speculant.core.errors import PromptError, UnsupportedError, UsageError


@pytest.fixture(scope="module")
def speculator() -> Speculator:
    return Speculator.from_transformers(tiny_model("llama"), method="lookup")


def ids() -> list[int]:
    return list(range(3, 12))


@pytest.mark.parametrize(
    "options",
    [
        {"generation_config": GenerationConfig(max_new_tokens=5)},
        {"max_length": 9 + 5},
        {"generation_config": GenerationConfig(max_new_tokens=9), "max_new_tokens": 5},
    ],
)
def test_any_way_to_say_how_long(speculator: Speculator, options: dict[str, Any]) -> None:
    """Guards lengths that do not come as max_new_tokens, which the default must not override."""
    assert len(speculator.generate(ids(), temperature=0, **options).ids) == 5


@pytest.mark.parametrize(("stop_at", "reason"), [(14, "stop"), (99, "length")])
def test_why_a_text_ended(speculator: Speculator, stop_at: int, reason: str) -> None:
    """Guards a criterion that is met at the very last token there is room for."""
    criterion = lambda ids, _: torch.tensor([ids.shape[1] >= stop_at])  # noqa: E731
    result = speculator.generate(ids(), max_new_tokens=5, temperature=0, stopping_criteria=[criterion])
    assert (len(result.ids), result.finish_reason) == (5, reason)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_new_tokens": 5.5}, "whole number"),
        ({"max_new_tokens": 0}, "at least 1"),
        ({"max_length": 2}, "1 or more"),
        ({"temperature": 0, "min_p": 0.3}, "min_p would be ignored"),
        ({"temperature": 0, "do_sample": True}, "do_sample would be ignored"),
        ({"past_key_values": object()}, "as `cache`"),
        ({"return_dict_in_generate": True}, "custom_generate"),
        ({"temperature": 1.0, "seed": 1 << 70}, "64 bits"),
        ({"temperature": 1.0, "seed": "x"}, "64 bits"),
        ({"stop_strings": ["."]}, "as `stop`"),
        ({"generation_config": {"max_new_tokens": 3}}, "GenerationConfig, not dict"),
    ],
)
def test_options_that_cannot_be_honoured(speculator: Speculator, options: dict[str, Any], said: str) -> None:
    """The option is named instead of ignored."""
    with pytest.raises(UsageError, match=said):
        speculator.generate(ids(), **options)


PROMPTS: list[Any] = [
    *([5, VOCABULARY], [-1], 7, [0.5], [], b"abc", [True, False], [{"role": "user"}, 3], torch.ones(2, 2, 2)),
    {"input_ids": [5, 9]},
]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_prompts_that_are_none(speculator: Speculator, prompt: Any) -> None:
    """What is wrong with the prompt is said before anything is computed."""
    with pytest.raises(PromptError):
        speculator.generate(prompt, max_new_tokens=3)


def test_embeddings_as_a_prompt(speculator: Speculator) -> None:
    """Guards the message: nothing is wrong with an empty prompt of ids where there are embeddings."""
    model = speculator.model
    embeddings = model.get_input_embeddings()(torch.tensor([ids()]))
    with pytest.raises(UnsupportedError, match="inputs_embeds"):
        model.generate(inputs_embeds=embeddings, max_new_tokens=3, custom_generate=speculator)


def test_half_of_a_surrogate_pair_is_no_text() -> None:
    """Guards against an error of the tokenizer's, which names no cause."""
    model, tokenizer = load_model(None)
    with pytest.raises(PromptError, match="surrogate"):
        Speculator.from_transformers(model, tokenizer).generate("a\ud800b", max_new_tokens=3)


def test_misspelled_options_are_named() -> None:
    """Guards drafting options: the message has the nearest name."""
    with pytest.raises(UsageError, match="Did you mean `memory`"):
        Speculator.from_transformers(tiny_model("llama"), memroy="x")  # type: ignore[call-arg]


def test_several_texts_as_a_prompt(speculator: Speculator) -> None:
    """Guards the way out: there is a method for them."""
    with pytest.raises(PromptError, match="generate_batch"):
        speculator.generate(["A dog", "A cat"], max_new_tokens=3)


def test_a_refused_request_leaves_its_streamer_alone(speculator: Speculator) -> None:
    """Guards consumers of the streamer: they see no prompt of a text that never comes."""

    class Seen:
        count = 0

        def put(self, value: torch.Tensor) -> None:
            self.count += 1

        end = TextIteratorStreamer.end

    seen = Seen()
    with pytest.raises(UnsupportedError):
        speculator.generate(ids(), num_beams=2, streamer=seen)
    assert seen.count == 0


class Counting(LogitsProcessor):
    """Forbids the token that equals the number of its calls."""

    calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return scores.index_fill(1, torch.tensor([self.calls % VOCABULARY]), -torch.inf)


def test_processors_of_a_batch_are_each_requests_own(speculator: Speculator) -> None:
    """Guards stateful processors, and the user's own object, which stays as it was."""
    prompts, own = [ids(), ids()[2:], ids()[3:]], Counting()
    options = {"max_new_tokens": 12, "temperature": 0}
    together = speculator.generate_batch(prompts, logits_processor=[own], **options)
    alone = [speculator.generate(prompt, logits_processor=[Counting()], **options) for prompt in prompts]
    assert [each.ids for each in together] == [each.ids for each in alone]
    assert own.calls == 0


@pytest.mark.parametrize(
    ("prompts", "options", "said"),
    [
        ("text", {}, "one text"),
        ([[5]], {"attention_mask": torch.ones(1, 1)}, "attention_mask"),
        ([[5]], {"size": 0}, "1"),
    ],
)
def test_batches_that_cannot_be(speculator: Speculator, prompts: Any, options: dict[str, Any], said: str) -> None:
    """A text is not a list of its letters, and what belongs to one prompt is not shared."""
    with pytest.raises(UsageError, match=said):
        speculator.generate_batch(prompts, **options)


def test_a_failing_streamer_loses_no_text(speculator: Speculator) -> None:
    """Guards the last round, which the cache has: it is in the result though the streamer's end raised."""

    class Failing:
        def put(self, value: torch.Tensor) -> None:
            pass

        def end(self) -> None:
            raise ArithmeticError("a streamer's bug")

    stream = speculator.stream(ids(), max_new_tokens=6, temperature=0, streamer=Failing())
    with pytest.raises(ArithmeticError):
        list(stream)
    assert len(stream.result.ids) == 6
