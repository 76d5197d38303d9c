"""Prompts of several sequences read in one pass are read as alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from models import deep_model
from pairwise import in_turn
from passes import greedy_texts, opened, plain_text
from speculant.core.engine import NO_OUTPUTS, RequestedOutputs
from speculant.core.errors import OutOfMemoryError, UsageError
from speculant.engines.hf.cpu.accelerate import prepare_model
from speculant.engines.hf.engine import HFEngine

SOURCE = np.random.default_rng(3)
PROMPTS = [torch.from_numpy(SOURCE.integers(3, 61, (1, length))) for length in (9, 1, 30, 4, 17, 9)]
MODELS = ["llama", "qwen3", "gemma3", "mistral", "mixtral", "gpt2", "phi3", "gpt_neox", "bloom"]
TAPS = (2, 0, -1)


def passes(model: Any) -> list[int]:
    """Return where the rows of every further pass of a model are noted."""
    rows: list[int] = []
    model.register_forward_pre_hook(
        lambda _module, _args, options: rows.append(options["input_ids"].shape[1]), with_kwargs=True
    )
    return rows


@pytest.mark.parametrize(
    ("name", "attention", "fast"), in_turn(MODELS, [("sdpa", False), ("sdpa", True), ("eager", False)])
)
def test_prompts_are_read_as_alone(name: str, attention: str, fast: bool) -> None:
    """Guards the masks of prompts side by side, whole or in chunks, past sliding windows, and the rounds after."""
    model = deep_model(name, attention)
    engine, needs = HFEngine(model, acceleration=prepare_model(model, fast)), RequestedOutputs(top_k=2)
    alone = [HFEngine(model).open(ids).prefill(needs=needs) for ids in PROMPTS]
    for chunk in (None, 7):
        caches = [engine.open(ids) for ids in PROMPTS]
        found: list[Any] = [None] * len(caches)
        while left := [place for place, cache in enumerate(caches) if cache.unread]:
            read = engine.prefill([(caches[place], chunk) for place in left], needs)
            for place, result in zip(left, read, strict=True):
                found[place] = result
        for own, joint in zip(alone, found, strict=True):
            assert own is not None
            torch.testing.assert_close(joint.logits, own.logits, atol=1e-4, rtol=1e-4)
            assert joint.top_ids.tolist() == own.top_ids.tolist()
        for cache, ids in zip(caches, PROMPTS, strict=True):
            rows = cache.forward(np.array([5], np.int32), np.array([-1], np.int32)).logits
            expected = opened(HFEngine(model), ids).forward(np.array([5], np.int32), np.array([-1], np.int32)).logits
            torch.testing.assert_close(rows, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_one_pass_reads_them(name: str) -> None:
    """Guards the gain: as many rows as tokens, once, and logits of the last rows alone."""
    model = deep_model(name)
    engine, rows = HFEngine(model), passes(model)
    results = engine.prefill([(engine.open(ids), None) for ids in PROMPTS])
    assert rows == [sum(ids.shape[1] for ids in PROMPTS)]
    assert all(result is not None and result.logits.shape[0] == 1 for result in results)


@pytest.mark.parametrize("prompt", [False, True])
def test_hidden_states_are_those_of_each_alone(prompt: bool) -> None:
    """Guards heads: the states of all tokens or of the last, of prompts that end in this pass and that do not."""
    model, needs = deep_model("llama"), RequestedOutputs(hidden_layers=TAPS, prompt=prompt)
    engine = HFEngine(model)
    caches = [engine.open(ids) for ids in PROMPTS]
    first = engine.prefill([(cache, 12) for cache in caches], needs)
    assert [result is None for result in first] == [ids.shape[1] > 12 for ids in PROMPTS]
    left = [place for place, result in enumerate(first) if result is None]
    for place, result in zip(left, engine.prefill([(caches[place], None) for place in left], needs), strict=True):
        first[place] = result
    for ids, joint in zip(PROMPTS, first, strict=True):
        own = engine.open(ids).prefill(needs=needs)
        assert own is not None
        assert joint is not None
        torch.testing.assert_close(joint.hidden, own.hidden, atol=1e-5, rtol=1e-4)


def test_prompts_with_padding_or_chains_only_are_read_apart() -> None:
    """Guards what a shared pass cannot read: padding, positions of the request's own, models without explicit masks."""
    model = deep_model("llama")
    engine, rows = HFEngine(model), passes(model)
    padding = torch.tensor([[0] * 5 + [1] * 25])
    caches = [engine.open(ids, padding=padding if ids.shape[1] == 30 else None) for ids in PROMPTS]
    engine.prefill([(cache, None) for cache in caches])
    assert sorted(rows) == [30, 40]
    for cache, ids in zip(caches, PROMPTS, strict=True):
        assert cache.length == ids.shape[1]


def test_a_model_that_refuses_reads_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards models whose layers attend in a way of their own: nothing of the shared pass stays; it is tried twice."""
    model = deep_model("llama")
    engine, texts = HFEngine(model), [plain_text(model, ids, 8) for ids in PROMPTS]
    tries: list[int] = []

    def refusing(*_args: Any, **_options: Any) -> Any:
        tries.append(1)
        raise RuntimeError("its layers change keys and values behind the cache.")

    with monkeypatch.context() as patched:
        patched.setattr("speculant.engines.hf.batch_attention.BatchCache.attend", refusing)
        for noted in (False, True, True):
            results = engine.prefill([(engine.open(ids), None) for ids in PROMPTS])
            firsts = [int(result.logits[0].argmax()) for result in results if result is not None]
            assert firsts == [text[0] for text in texts]
            assert any("prompts are read one after the other" in note for note in engine.notes) == noted
    assert tries == [1, 1]
    assert greedy_texts(engine, PROMPTS, texts) == texts


def test_a_prompt_that_cannot_be_read_says_nothing_of_the_model() -> None:
    """Guards other prompts from being read apart for ever because of one request's own fault."""
    engine = HFEngine(deep_model("llama"))
    read = opened(engine, PROMPTS[0])
    with pytest.raises(UsageError, match="already been read"):
        engine.prefill([(read, None), (engine.open(PROMPTS[1]), None)])
    rows = passes(engine.model)
    engine.prefill([(engine.open(ids), None) for ids in PROMPTS])
    assert rows == [sum(ids.shape[1] for ids in PROMPTS)]


def test_a_full_device_leaves_prompts_that_can_be_read_again() -> None:
    """Guards the caches of all sequences of the pass that found no room."""
    model = deep_model("llama")
    engine, layer = HFEngine(model), model.model.layers[1].mlp
    working = layer.forward

    def full(*_args: Any) -> Any:
        raise torch.OutOfMemoryError("no room")

    caches = [engine.open(ids) for ids in PROMPTS]
    layer.forward = full
    with pytest.raises(OutOfMemoryError):
        engine.prefill([(cache, None) for cache in caches], NO_OUTPUTS)
    layer.forward = working
    for cache in caches:
        cache.restart()
    for ids, result in zip(PROMPTS, engine.prefill([(cache, None) for cache in caches]), strict=True):
        own = HFEngine(model).open(ids).prefill()
        assert own is not None
        assert result is not None
        torch.testing.assert_close(result.logits, own.logits, atol=1e-5, rtol=1e-4)
