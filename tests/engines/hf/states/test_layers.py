"""Layers of states: what is remembered of a text, and what other code does to a cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from architecture_matrix.catalogue import build
from passes import IDS, opened
from speculant import PrefixCache, Speculator
from speculant.core.errors import OutOfMemoryError, UnsupportedError
from speculant.engines.hf import prompt_reader
from speculant.engines.hf.cache import state_layers
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.states.layers import LinearAttentionLayer, StateLayer

if not issubclass(StateLayer, LinearAttentionLayer) or not hasattr(LinearAttentionLayer, "update_conv_state"):
    pytest.skip("this release of transformers keeps states in classes of each model's own", allow_module_level=True)

PROMPT = IDS[0].tolist()
OPTIONS: dict[str, Any] = {"temperature": 0, "max_new_tokens": 12}


def speculator_of(name: str) -> Speculator:
    return Speculator.from_transformers(build(name, "eager"), method="recycling", nodes=8, fast=False)


@pytest.mark.parametrize("name", ["qwen3_5_text", "mamba2", "lfm2", "zamba", "recurrent_gemma", "minimax"])
def test_the_next_turn_goes_on_from_the_cache(name: str) -> None:
    """Guards `cache=` between turns: the second answer is that of the whole text."""
    speculator = speculator_of(name)
    first = speculator.generate(PROMPT, **OPTIONS)
    turn = [*PROMPT, *first.ids, 17, 18]
    second = speculator.generate(turn, cache=first.cache, **OPTIONS)
    assert second.ids == speculator.generate(turn, **OPTIONS).ids
    assert second.stats.prompt_tokens < 5


@pytest.mark.parametrize("name", ["qwen3_5_text", "mamba2", "recurrent_gemma", "minimax"])
def test_a_prompt_can_begin_where_a_state_is_known(name: str) -> None:
    """Guards crops: to the end of the prompt or of the text, and to nothing in between."""
    engine = HFEngine(build(name, "eager"))
    sequence = opened(engine, IDS)
    for token in (7, 8, 9):
        sequence.forward(*(torch.tensor([number], dtype=torch.int32).numpy() for number in (token, -1)))
        sequence.keep([0])
    cache = sequence.cache
    assert [engine.reusable(cache, length) for length in (11, 12, 14, 15, 20)] == [0, 12, 12, 15, 15]
    copy = engine.copy_prefix(cache, 14, room=20)
    assert engine.crop(cache, 13) == 12
    expected = opened(engine, torch.tensor([[*PROMPT, 30]])).plain_logits([31])
    for held in (cache, copy):
        again = engine.open(torch.tensor([[*PROMPT, 30]]), cache=held)
        assert again.prefill() is not None
        torch.testing.assert_close(again.plain_logits([31]), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["mamba2", "recurrent_gemma", "minimax"])
def test_a_prefix_cache_shares_states(name: str) -> None:
    """Guards shared beginnings: what is reused is counted, and texts are as without."""
    model = build(name, "eager")
    model.config.max_position_embeddings = 128
    speculator = Speculator.from_transformers(model, method="recycling", nodes=8, fast=False)
    long = (PROMPT * 8)[:80]
    expected = [speculator.generate(prompt, **OPTIONS).ids for prompt in (long, [*long, 9, 9])]
    with speculator.batch(1, prefix_cache=PrefixCache("1GB")) as batch:
        results = batch.run([batch.add(prompt, **OPTIONS) for prompt in (long, [*long, 9, 9])])
    assert [each.ids for each in results] == expected
    assert results[1].stats.reused_tokens == 80


def test_what_others_do_to_a_cache_is_noticed() -> None:
    """Guards texts that `generate` went on with: attention tells their length, states alone do not."""
    hybrid = speculator_of("lfm2")
    first = hybrid.generate(PROMPT, **OPTIONS)
    held = torch.tensor([[*PROMPT, *first.ids]])
    mask = torch.ones_like(held)
    longer = hybrid.model.generate(
        held, past_key_values=first.cache, attention_mask=mask, max_new_tokens=5, do_sample=False
    )[0].tolist()
    again = hybrid.generate([*longer, 9], cache=first.cache, **OPTIONS)
    assert again.ids == hybrid.generate([*longer, 9], **OPTIONS).ids
    alone = speculator_of("mamba2")
    first = alone.generate(PROMPT, **OPTIONS)
    with torch.no_grad():
        alone.model(torch.tensor([[9]]), cache_params=first.cache, use_cache=True)
    with pytest.raises(UnsupportedError, match="do not belong to its text"):
        alone.generate([*PROMPT, *first.ids, 9, 9], cache=first.cache, **OPTIONS)


def test_bytes_are_those_of_states_and_records() -> None:
    """Guards what budgets and the docs go by: a draft costs records, not states."""
    engine = HFEngine(build("qwen3_5_text", "eager"))
    sequence = opened(engine, IDS)
    [layer] = state_layers(sequence.cache)
    states = [*layer.conv_states.values(), *layer.recurrent_states.values()]
    assert layer.nbytes == sum(state.nbytes for state in states)
    rows = torch.arange(5, dtype=torch.int32).numpy()
    sequence.forward(rows + 5, rows - 1)
    conv, recurrent = (sum(state.shape[1] for state in kind.values()) for kind in (layer.conv_states, {}))
    heads, keys, values = layer.recurrent_states[0].shape[1:]
    assert layer.recorded_bytes == 5 * 4 * (conv + recurrent + heads * (keys + values + 1))


@pytest.mark.parametrize("fault", [KeyboardInterrupt, torch.OutOfMemoryError])
def test_a_fault_while_rows_are_kept_leaves_all_layers_as_they_were(
    fault: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards commits of several layers: a text never goes on with layers that have read different tokens."""
    engine = HFEngine(build("mamba2", "eager"))
    sequence = opened(engine, IDS)
    assert len(state_layers(sequence.cache)) > 1
    expected = sequence.plain_logits([7, 9])
    rows = torch.arange(3, dtype=torch.int32).numpy()
    sequence.forward(rows + 7, rows - 1)
    own, calls = StateLayer._fold_records, list[int]()

    def failing(layer: StateLayer, path: list[int]) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise fault
        return own(layer, path)

    monkeypatch.setattr(StateLayer, "_fold_records", failing)
    with pytest.raises((KeyboardInterrupt, OutOfMemoryError)):
        sequence.keep([0, 1])
    sequence.rollback()
    assert {layer.tokens for layer in state_layers(sequence.cache)} == {12}
    torch.testing.assert_close(sequence.plain_logits([7, 9]), expected, atol=1e-4, rtol=1e-4)


def test_long_prompts_behind_a_state_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards Mamba's second turns, whose rows are recorded: few at a time, to the same state."""
    monkeypatch.setattr(prompt_reader, "RECORDED_AT_ONCE", 5)
    for name in ("mamba", "jamba", "recurrent_gemma"):
        speculator = speculator_of(name)
        first = speculator.generate(PROMPT, temperature=0, max_new_tokens=3)
        turn = [*PROMPT, *first.ids, *range(20, 33)]
        assert speculator.generate(turn, cache=first.cache, **OPTIONS | {"max_new_tokens": 3}).ids == (
            speculator.generate(turn, **OPTIONS | {"max_new_tokens": 3}).ids
        )


def test_caches_in_inference_mode() -> None:
    """Guards tensors without versions: our own turns go on, and what others have written is noticed."""
    alone = speculator_of("mamba2")
    with torch.inference_mode():
        first = alone.generate(PROMPT, **OPTIONS)
        turn = [*PROMPT, *first.ids, 9]
        second = alone.generate(turn, cache=first.cache, **OPTIONS)
        assert second.ids == alone.generate(turn, **OPTIONS).ids
        alone.model(torch.tensor([[9]]), cache_params=second.cache, use_cache=True)
        with pytest.raises(UnsupportedError, match="do not belong to its text"):
            alone.generate([*turn, *second.ids, 9, 9], cache=second.cache, **OPTIONS)


def test_marks_are_weighed() -> None:
    """Guards budgets: states that are kept for other texts count."""
    engine = HFEngine(build("mamba2", "eager"))
    sequence = opened(engine, IDS)
    before = engine.held_bytes(sequence.cache)
    sequence.forward(*(torch.tensor([number], dtype=torch.int32).numpy() for number in (7, -1)))
    sequence.keep([0])
    assert engine.held_bytes(sequence.cache) == 2 * before


def test_marks_of_another_text_are_dropped() -> None:
    """Guards chats that go back: a state of the answer that was dropped never begins a text."""
    engine = HFEngine(build("mamba2", "eager"))
    longer = torch.tensor([[*PROMPT, 20, 21, 22, 23]])
    sequence = engine.open(longer, cache=opened(engine, IDS).detach())
    assert sequence.prefill() is not None
    cache = sequence.detach()
    assert [engine.reusable(cache, length) for length in (12, 15, 16)] == [12, 12, 16]
    assert engine.crop(cache, 14) == 12
    other = engine.open(torch.tensor([[*PROMPT, *range(30, 38)]]), cache=cache)
    assert other.prefill() is not None
    assert [engine.reusable(other.cache, length) for length in (12, 16, 19, 20)] == [12, 12, 12, 20]
