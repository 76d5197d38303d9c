"""Calls that are prepared without `generate` are those that it would prepare."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationMixin, LogitsProcessorList

from models import tiny_model
from speculant import Speculator
from speculant.engines.hf.sampling import repeated_calls
from speculant.engines.hf.sampling.generate_capture import GenerateCall, prepare_call
from speculant.engines.hf.sampling.repeated_calls import RepeatedCalls

USUAL: list[dict[str, Any]] = [
    {},
    {"do_sample": False, "temperature": 1.0, "top_p": 1.0, "top_k": 50},
    {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 7, "min_p": 0.1},
    {"eos_token_id": [3, 4], "pad_token_id": 0},
    {"prefill_chunk_size": 2},
    {"use_cache": False},
]
OTHERS: list[dict[str, Any]] = [
    {"repetition_penalty": 1.2},
    {"min_new_tokens": 2},
    {"max_time": 60.0},
    {"logits_processor": LogitsProcessorList()},
    {"attention_mask": torch.tensor([[0, 1, 1, 1]])},
]


def prompt(length: int) -> Tensor:
    """Return ids of a prompt."""
    return torch.arange(5, 5 + length)[None]


def asked(ids: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """Return options as requests give them."""
    return {"attention_mask": torch.ones_like(ids), **options}


def contents(value: Any) -> Any:
    """Return what a part of a call consists of, in a form that can be compared."""
    if isinstance(value, Tensor):
        return value.dtype, value.tolist()
    if isinstance(value, list | tuple):
        return [contents(each) for each in value]
    if isinstance(value, dict):
        return {name: contents(each) for name, each in value.items()}
    if type(value).__module__.startswith("transformers.") and not isinstance(value, torch.nn.Module):
        return type(value), contents(vars(value))
    return value


def filled(model: Any, options: dict[str, Any]) -> RepeatedCalls:
    """Return calls that remember one prepared for a prompt of 4 tokens."""
    calls, ids = RepeatedCalls(model), prompt(4)
    given = asked(ids, options)
    calls.keep(prepare_call(model, ids, max_new_tokens=9, **given), ids, given, max_new_tokens=9)
    return calls


def found(calls: RepeatedCalls, ids: Tensor, options: dict[str, Any], *, tokens: int = 5) -> GenerateCall | None:
    """Return the call that is prepared from a remembered one; None if there is none."""
    return calls.find(ids, asked(ids, options), max_new_tokens=tokens)


def repeated(calls: RepeatedCalls, ids: Tensor, options: dict[str, Any], *, tokens: int = 5) -> GenerateCall:
    """Return the call that is prepared from a remembered one."""
    call = found(calls, ids, options, tokens=tokens)
    assert call is not None
    return call


@pytest.mark.parametrize("kind", ["llama", "gemma3", "gpt2"])
@pytest.mark.parametrize("options", USUAL, ids=str)
def test_a_repeated_call_is_the_one_that_generate_prepares(kind: str, options: dict[str, Any]) -> None:
    """Guards every field of a call, for shorter and longer prompts, on caches of several kinds."""
    model = tiny_model(kind)
    calls = filled(model, options)
    for length, tokens in ((1, 1), (4, 9), (11, 30)):
        ids = prompt(length)
        call = repeated(calls, ids, options, tokens=tokens)
        plain = prepare_call(model, ids, max_new_tokens=tokens, **asked(ids, options))
        assert contents(vars(call)) == contents(vars(plain))


@pytest.mark.parametrize("options", OTHERS, ids=str)
def test_unusual_calls_are_not_repeated(options: dict[str, Any]) -> None:
    """Guards processors and criteria that keep something of a text, padding, and objects of the user."""
    assert found(filled(tiny_model("llama"), options), prompt(4), options) is None


@pytest.mark.parametrize("name", ["_prepare_generated_length", "_expand_inputs_for_generation"])
def test_a_model_that_prepares_in_its_own_way_is_asked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards classes and models with methods of their own, which may do anything."""
    model = tiny_model("llama")
    with monkeypatch.context() as patch:
        patch.setattr(model, name, getattr(model, name))
        assert found(filled(model, {}), prompt(4), {}) is None
    assert found(filled(model, {}), prompt(4), {}) is not None
    monkeypatch.setattr(type(model), name, vars(GenerationMixin)[name], raising=False)
    assert found(filled(model, {}), prompt(4), {}) is None


def test_other_options_are_others() -> None:
    """Guards the values of options, also those that compare equal."""
    calls = filled(tiny_model("llama"), {"do_sample": True, "top_k": 1})
    assert found(calls, prompt(4), {"do_sample": True, "top_k": 1}) is not None
    for other in ({"do_sample": True, "top_k": 2}, {"do_sample": True, "top_k": True}, {"do_sample": True}, {}):
        assert found(calls, prompt(4), other) is None


def test_calls_share_nothing_that_decoding_writes_to() -> None:
    """Guards texts from each other: caches, configs and lists are each call's own."""
    model = tiny_model("llama")
    calls = filled(model, {})
    first, second = repeated(calls, prompt(4), {}), repeated(calls, prompt(6), {})
    first.processors.append("mine")
    if first.cache is not None:  # releases of transformers differ in who makes it
        first.cache.update(*(torch.ones(1, 2, 3, 4) for _ in range(2)), 0)
        assert [each.cache.get_seq_length() for each in (second, repeated(calls, prompt(4), {}))] == [0, 0]
    assert not second.processors
    assert (first.config.max_length, second.config.max_length) == (9, 11)


def test_the_models_generation_config_is_the_current_one() -> None:
    """Guards changes of `model.generation_config` between two requests, in place and by assignment."""
    model = tiny_model("llama")
    model.generation_config.do_sample = False
    speculator = Speculator.from_transformers(model)
    texts = [speculator.generate(prompt(4), max_new_tokens=12).ids for _ in range(2)]
    model.generation_config.eos_token_id = texts[0][3]
    changed = [speculator.generate(prompt(4), max_new_tokens=12).ids for _ in range(2)]
    assert texts[0] == texts[1]
    assert changed[0] == changed[1] == texts[0][: texts[0].index(texts[0][3]) + 1]
    model.generation_config = type(model.generation_config)(do_sample=False, suppress_tokens=[texts[0][0]])
    assert speculator.generate(prompt(4), max_new_tokens=12).ids[0] != texts[0][0]


def test_a_replaced_generate_is_called() -> None:
    """Guards changes of the model's class between two requests."""
    model = tiny_model("llama")
    speculator = Speculator.from_transformers(model)
    speculator.generate(prompt(4), max_new_tokens=2)
    seen = list[Any]()

    def generate(*args: Any, **options: Any) -> Any:
        seen.append(options)
        return type(model).generate(model, *args, **options)

    model.generate = generate
    speculator.generate(prompt(4), max_new_tokens=2)
    assert len(seen) == 1


def test_generate_prepares_equal_requests_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the time of a request."""
    model, seen = tiny_model("llama"), list[Any]()
    speculator = Speculator.from_transformers(model)
    monkeypatch.setattr(
        "speculant.engines.hf.engine.prepare_call", lambda *a, **o: seen.append(o) or prepare_call(*a, **o)
    )
    texts = [speculator.generate(prompt(length), max_new_tokens=4, temperature=0.5, seed=1) for length in (4, 9, 4)]
    assert len(seen) == 1
    assert texts[0].ids == texts[2].ids


def test_the_number_of_remembered_calls_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards servers, whose clients may give any temperature; those not used for longest are forgotten."""
    monkeypatch.setattr(repeated_calls, "LIMIT", 2)
    model, ids = tiny_model("llama"), prompt(4)
    calls = RepeatedCalls(model)
    options = [{"do_sample": True, "temperature": heat} for heat in (0.1, 0.2, 0.3)]
    for place, each in enumerate(options):
        given = asked(ids, each)
        calls.keep(prepare_call(model, ids, max_new_tokens=9, **given), ids, given, max_new_tokens=9)
        if place:
            assert found(calls, ids, options[0] if place == 1 else each) is not None
    assert [found(calls, ids, each) is None for each in options] == [False, True, False]


def test_texts_end_at_their_own_length() -> None:
    """Guards the length of texts whose prompts are longer and shorter than the first one's."""
    speculator = Speculator.from_transformers(tiny_model("llama"))
    for length, tokens in ((4, 9), (12, 3), (2, 7)):
        assert len(speculator.generate(prompt(length), max_new_tokens=tokens, eos_token_id=-1).ids) == tokens
