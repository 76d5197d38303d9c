"""Several rows through `model.generate(custom_generate=...)`: each as if alone, together as transformers gives them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache, StoppingCriteria, TextStreamer

from architecture_matrix.catalogue import build
from guesses import Guesses
from models import VOCABULARY, tiny_model
from pairwise import in_turn
from processors import Shifting
from speculant import Speculator
from speculant.api.batch import BatchError
from speculant.core.errors import UnsupportedError

LENGTHS = (9, 1, 14, 4, 6)
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 20}
SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 0.8, "max_new_tokens": 18}


def prompts(lengths: Sequence[int] = LENGTHS) -> dict[str, torch.Tensor]:
    """Return rows of different lengths, Int64[B, T], padded on the left."""
    source = np.random.default_rng(3)
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, max(lengths) - length :] = torch.from_numpy(source.integers(3, VOCABULARY, length))
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def row(inputs: dict[str, torch.Tensor], place: int) -> dict[str, torch.Tensor]:
    """Return one of the rows with its padding."""
    return {name: value[place : place + 1] for name, value in inputs.items()}


def stripped(inputs: dict[str, torch.Tensor], place: int) -> torch.Tensor:
    """Return one of the rows without its padding."""
    return inputs["input_ids"][place][inputs["attention_mask"][place].bool()]


def guessing(model: Any, inputs: dict[str, torch.Tensor], texts: torch.Tensor) -> Speculator:
    """Return a speculator whose drafts are good guesses at the rows of what `generate` returned."""
    start = inputs["input_ids"].shape[1]
    speculator = Speculator.from_transformers(model, method="none", nodes=20)
    speculator.drafter = Guesses(
        {tuple(stripped(inputs, place).tolist()): text[start:].tolist() for place, text in enumerate(texts)}
    )
    return speculator


class StopsAfter(StoppingCriteria):
    """Shares a processor's state: ends a row at a token divisible by 3 once that was called often enough."""

    def __init__(self, counter: Shifting, calls: int) -> None:
        self.counter, self.calls = counter, calls

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return (input_ids[:, -1] % 3 == 0) & (self.counter.calls >= self.calls)


@pytest.mark.parametrize(
    ("name", "attention"), in_turn(["llama", "gemma3", "mistral", "gpt2", "bloom"], ["sdpa", "eager"])
)
def test_greedy_rows_are_those_of_generate(name: str, attention: str) -> None:
    """Guards ragged prompts on every kind of position and mask: the batch's rows, each row alone, no padding read."""
    model, inputs = tiny_model(name, attention), prompts()
    plain = model.generate(**inputs, **GREEDY)
    speculator = guessing(model, inputs, plain)
    ours = model.generate(**inputs, **GREEDY, custom_generate=speculator)
    assert torch.equal(ours, plain)
    assert speculator.drafter.opened == speculator.drafter.closed == len(LENGTHS)
    for place in range(len(LENGTHS)):
        ids = stripped(inputs, place)
        alone = model.generate(ids[None], attention_mask=torch.ones_like(ids)[None], **GREEDY)[0, len(ids) :].tolist()
        assert ours[place, inputs["input_ids"].shape[1] :].tolist()[: len(alone)] == alone
    assert speculator.last_stats is not None
    assert speculator.last_stats.accepted > 5
    assert speculator.last_stats.prompt_tokens == LENGTHS[-1]


def test_rows_that_end_early_are_padded() -> None:
    """Guards the shape [B, T] and the pad token behind each row's end, which need not be that of the prompts."""
    model, inputs = tiny_model("llama"), prompts()
    start = inputs["input_ids"].shape[1]
    texts = model.generate(**inputs, **GREEDY)
    endings = [int(texts[0, start + 3]), int(texts[2, start + 11])]
    options = GREEDY | {"eos_token_id": endings, "pad_token_id": 33}
    plain = model.generate(**inputs, **options)
    ours = model.generate(**inputs, **options, custom_generate=guessing(model, inputs, texts))
    assert torch.equal(ours, plain)
    assert (ours[0, start + 4 :] == 33).all()


@pytest.mark.parametrize(
    ("options", "name"),
    in_turn(
        [
            {"min_new_tokens": 12, "eos_token_id": list(range(3, 30))},
            {"repetition_penalty": 1.4},
            {"no_repeat_ngram_size": 2},
            {"prefix_allowed_tokens_fn": lambda place, ids: [3 + place, 20 + place, 40 + len(ids) % 7, 50]},
            {"bad_words_ids": [[7], [9, 11]], "exponential_decay_length_penalty": (5, 1.5)},
        ],
        ["llama", "gpt2"],
    ),
)
def test_processors_see_what_generate_shows_them(options: dict[str, Any], name: str) -> None:
    """Guards processors that read the prefix or count it: padding in front is part of it, a row's place is its own."""
    model, inputs = tiny_model(name), prompts()
    plain = model.generate(**inputs, **GREEDY | options)
    ours = model.generate(**inputs, **GREEDY | options, custom_generate=Speculator.from_transformers(model))
    assert torch.equal(ours, plain)
    for place in range(len(LENGTHS)):
        if "prefix_allowed_tokens_fn" not in options:
            alone = model.generate(**row(inputs, place), **GREEDY | options)[0].tolist()
            assert ours[place].tolist()[: len(alone)] == alone


def test_state_belongs_to_a_row() -> None:
    """Guards stateful processors and criteria, and state that the two share, from rows of other lengths."""
    model, inputs = tiny_model("llama"), prompts()

    def stateful() -> dict[str, Any]:
        counter = Shifting()
        return {"logits_processor": [counter], "stopping_criteria": [StopsAfter(counter, 8)]}

    plain = model.generate(**inputs, **GREEDY, **stateful())
    given = stateful()
    ours = model.generate(**inputs, **GREEDY, **given, custom_generate=guessing(model, inputs, plain))
    assert torch.equal(ours, plain)
    assert (ours[:, -1] == 0).any()
    assert given["logits_processor"][0].calls == 0


@pytest.mark.parametrize(
    ("options", "name"), in_turn([{}, {"top_p": 0.9, "repetition_penalty": 1.2}], ["llama", "gpt2"])
)
def test_seeded_rows_are_those_alone(name: str, options: dict[str, Any]) -> None:
    """Guards random streams: row i draws from seed + i, and as `generate` alone does from that seed."""
    model, inputs = tiny_model(name), prompts()
    speculator = Speculator.from_transformers(model)
    before = torch.get_rng_state()
    ours = model.generate(**inputs, **SAMPLED | options, custom_generate=speculator.bind(seed=5))
    assert torch.equal(before, torch.get_rng_state())
    for place in range(len(LENGTHS)):
        bound = speculator.bind(seed=5 + place)
        alone = model.generate(**row(inputs, place), **SAMPLED | options, custom_generate=bound)[0].tolist()
        torch.manual_seed(5 + place)
        plain = model.generate(**row(inputs, place), **SAMPLED | options)[0].tolist()
        assert ours[place].tolist()[: len(alone)] == alone == plain


def test_without_a_seed_texts_follow_the_default_stream() -> None:
    """Guards `torch.manual_seed` in front of a call, for copies of one prompt too, which must not all say the same."""
    model, inputs = tiny_model("llama"), row(prompts(), 0)
    speculator = Speculator.from_transformers(model)
    said = []
    for _ in range(2):
        torch.manual_seed(9)
        said.append(model.generate(**inputs, **SAMPLED, num_return_sequences=3, custom_generate=speculator))
    assert torch.equal(*said)
    assert said[0].shape[0] == 3
    assert len({tuple(text.tolist()) for text in said[0]}) == 3
    assert not torch.equal(said[0], model.generate(**inputs, **SAMPLED, num_return_sequences=3))
    before = torch.get_rng_state()
    model.generate(**prompts(), **GREEDY, custom_generate=speculator)
    assert torch.equal(before, torch.get_rng_state())


def test_several_sequences_of_several_prompts() -> None:
    """Guards the order of `num_return_sequences`, and the seeds of the rows it makes."""
    model, inputs = tiny_model("llama"), prompts()
    speculator = Speculator.from_transformers(model)
    options = SAMPLED | {"num_return_sequences": 2}
    ours = model.generate(**inputs, **options, custom_generate=speculator.bind(seed=1))
    doubled = {name: value.repeat_interleave(2, dim=0) for name, value in inputs.items()}
    assert torch.equal(ours, model.generate(**doubled, **SAMPLED, custom_generate=speculator.bind(seed=1)))


@pytest.mark.parametrize("processors", [{}, {"repetition_penalty": 1.3}])
def test_scores_and_logits_are_those_of_generate(processors: dict[str, Any]) -> None:
    """Guards the output object: [B, V] per step, true while a row goes on, and certain of padding behind its end."""
    model, inputs = tiny_model("llama"), prompts()
    start = inputs["input_ids"].shape[1]
    ending = int(model.generate(**inputs, **GREEDY | processors)[0, start + 5])
    wanted = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    options = GREEDY | processors | wanted | {"eos_token_id": ending}
    plain = model.generate(**inputs, **options)
    ours = model.generate(**inputs, **options, custom_generate=Speculator.from_transformers(model))
    assert ours.past_key_values is None
    assert torch.equal(ours.sequences, plain.sequences)
    said = ours.sequences[:, start:]
    going = (said == ending).long().cumsum(1) - (said == ending).long() == 0
    assert not going.all()
    for own, theirs in ((ours.scores, plain.scores), (ours.logits, plain.logits)):
        own, theirs = torch.stack(own, 1), torch.stack(theirs, 1)
        assert own.shape == theirs.shape == (*said.shape, VOCABULARY)
        torch.testing.assert_close(own[going], theirs[going])
        assert (own[~going].softmax(-1)[:, 0] == 1).all()
    sums = model.compute_transition_scores(ours.sequences, ours.scores, normalize_logits=True)
    assert (sums[~going] == 0).all()


def test_stop_strings_end_rows() -> None:
    """Guards `bind(stop=...)` for rows that end at different places."""
    speculator = Speculator.from_pretrained()
    model, tokenizer = speculator.model, speculator.tokenizer
    tokenizer.padding_side = "left"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    inputs = tokenizer(
        ["One day, a girl", "The", "Once upon a time there was a dog. He"], return_tensors="pt", padding=True
    )
    inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    plain = model.generate(**inputs, **GREEDY, stop_strings=["."], tokenizer=tokenizer)
    assert torch.equal(model.generate(**inputs, **GREEDY, custom_generate=speculator.bind(stop=".")), plain)


@pytest.mark.parametrize("masked", [None, slice(3, 6), slice(10, None)])
def test_odd_masks_are_honoured(masked: slice | None) -> None:
    """Guards masks with holes, padding behind a prompt, and masks that are all ones, which `generate` drops."""
    model, inputs = tiny_model("llama"), prompts()
    inputs["attention_mask"][:] = 1
    if masked is not None:
        inputs["attention_mask"][2, masked] = 0
    plain = model.generate(**inputs, **GREEDY)
    assert torch.equal(model.generate(**inputs, **GREEDY, custom_generate=Speculator.from_transformers(model)), plain)


def test_rows_are_decoded_together() -> None:
    """Guards the point of it: one pass for all rows, and drafts on top."""
    model, inputs = tiny_model("llama"), prompts()
    passes = []
    handle = model.register_forward_hook(lambda *_: passes.append(1))
    plain = model.generate(**inputs, **GREEDY)
    speculator = guessing(model, inputs, plain)
    model.generate(**inputs, **GREEDY, custom_generate=speculator)  # the first one probes the model
    passes.clear()
    model.generate(**inputs, **GREEDY, custom_generate=speculator)
    handle.remove()
    assert len(passes) < len(LENGTHS) + 25


def failing(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Fail in the middle of one of the rows."""
    if input_ids.shape[1] == 20 and input_ids[0, 0] != 0:
        raise ZeroDivisionError("a processor's bug")
    return scores


def test_a_row_that_fails_says_why() -> None:
    """Guards errors of a user's own code: the row, the cause, and what the other rows said."""
    model, inputs = tiny_model("llama"), prompts()
    with pytest.raises(BatchError, match="number 3: ZeroDivisionError") as met:
        model.generate(
            **inputs, **GREEDY, logits_processor=[failing], custom_generate=Speculator.from_transformers(model)
        )
    assert isinstance(met.value.__cause__, ZeroDivisionError)
    assert [len(result.ids) == GREEDY["max_new_tokens"] for result in met.value.results] == [
        True,
        True,
        False,
        True,
        True,
    ]


class Locked(Shifting):
    """Cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"num_beams": 2}, "num_beams=2"),
        ({"return_dict_in_generate": True, "output_attentions": True}, "output_attentions"),
        ({"cache_implementation": "static"}, "StaticCache"),
        ({"encoder_repetition_penalty": 1.2}, "EncoderRepetitionPenalty.*call once for each row"),
        ({"guidance_scale": 1.5}, "UnbatchedClassifierFreeGuidance"),
        ({"logits_processor": [Locked()]}, "cannot be copied.*call once for each row"),
        ({"eos_token_id": None, "stopping_criteria": [StopsAfter(Shifting(), 0)]}, "Set eos_token_id"),
    ],
    ids=["beams", "attentions", "static-cache", "encoder", "guidance", "not-copied", "no-end"],
)
def test_what_cannot_be_honoured_is_refused(options: dict[str, Any], reason: str) -> None:
    """Guards against rows that would differ from those of `generate` without a word."""
    model = tiny_model("llama", "eager")
    if "eos_token_id" in options:
        model.generation_config.eos_token_id = None
    with pytest.raises(UnsupportedError, match=reason):
        model.generate(**prompts(), **GREEDY | options, custom_generate=Speculator.from_transformers(model))


def test_streamers_and_filled_caches_are_refused() -> None:
    """Guards what only one sequence can have."""
    model, inputs = tiny_model("llama"), prompts((9, 9))
    speculator = Speculator.from_transformers(model)
    with pytest.raises(UnsupportedError, match=r"one sequence, not 2.*Speculator\.batch"):
        model.generate(**inputs, **GREEDY, custom_generate=speculator.bind(streamer=TextStreamer(None)))
    cache = DynamicCache()
    model.generate(**inputs, max_new_tokens=1, past_key_values=cache)
    longer = {name: torch.cat([value, torch.ones_like(value[:, :2])], dim=1) for name, value in inputs.items()}
    with pytest.raises(UnsupportedError, match="filled cache"):
        model.generate(**longer, **GREEDY, past_key_values=cache, custom_generate=speculator)


def test_what_is_decoded_plainly_returns_its_cache() -> None:
    """Guards loops that pass a turn's cache on: without it, the next turn reads the whole conversation again."""
    model, ids = build("doge", "eager"), torch.tensor([[5, 9, 14, 3, 8]])
    speculator, options = Speculator.from_transformers(model), GREEDY | {"return_dict_in_generate": True}
    for decoding in ({}, {"custom_generate": speculator}):
        first = model.generate(ids, **options, **decoding)
        again = torch.cat([first.sequences, ids], dim=1)
        second = model.generate(again, **options, **decoding, past_key_values=first.past_key_values)
        if not decoding:
            expected = (first.past_key_values.get_seq_length(), second.sequences.tolist())
    assert (first.past_key_values.get_seq_length(), second.sequences.tolist()) == expected
