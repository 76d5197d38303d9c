"""How a batch reads prompts: short ones together, long ones in chunks, what they share once, and first tokens early."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from models import tiny_model
from speculant import Speculator
from speculant.core.errors import OutOfMemoryError

OPTIONS: dict[str, Any] = {"max_new_tokens": 12, "temperature": 0}
LENGTHS = (5, 9, 3, 7)
Alone = Callable[[list[torch.Tensor]], list[list[int]]]


def texts(lengths: tuple[int, ...] = LENGTHS, *, shared: int = 0) -> list[torch.Tensor]:
    """Return prompts, Int64[T] each, that begin with the same tokens and differ behind them."""
    torch.manual_seed(4)
    head = torch.randint(3, 60, (shared,))
    return [torch.cat([head, torch.randint(3, 60, (length,))]) for length in lengths]


def opened(**options: Any) -> tuple[Any, Speculator, list[int]]:
    """Return a model, a speculator, and where the rows of every pass are noted from now on."""
    model = tiny_model("llama")
    speculator, rows = Speculator.from_transformers(model, method="mix", fast=False, nodes=4, **options), list[int]()
    model.register_forward_pre_hook(
        lambda _module, _args, given: rows.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    return model, speculator, rows


@pytest.fixture(scope="module")
def alone() -> Alone:
    """Return what gives the text of each prompt by plain decoding, each computed once."""
    speculator = Speculator.from_transformers(tiny_model("llama"), method="none")
    text = cache(lambda *prompt: speculator.generate(prompt, **OPTIONS).ids)
    return lambda prompts: [text(*prompt.tolist()) for prompt in prompts]


def decoded(batch: Any, prompts: list[torch.Tensor]) -> list[list[int]]:
    """Return the text of each prompt by a batch."""
    generations = [batch.add(prompt, **OPTIONS) for prompt in prompts]
    for _ in batch:
        pass
    return [generation.result.ids for generation in generations]


def test_short_prompts_are_read_by_one_pass(alone: Alone) -> None:
    """Guards the time to the first token where several requests arrive at once."""
    _, speculator, rows = opened()
    batch = speculator.batch(4)
    rows.clear()
    generations = [batch.add(prompt, **OPTIONS) for prompt in texts()]
    pieces = batch.step()
    assert rows == [sum(LENGTHS)]
    assert {generation for generation, _ in pieces} == {*generations}
    for _ in batch:
        pass
    assert [generation.result.ids for generation in generations] == alone(texts())


def test_first_tokens_come_with_their_pass(alone: Alone) -> None:
    """Guards requests from waiting for the prompts of all others: a step ends with a pass of one chunk."""
    _, speculator, rows = opened()
    batch = speculator.batch(4, prompt_chunk=8)
    rows.clear()
    generations = [batch.add(prompt, **OPTIONS) for prompt in texts()]
    pieces = batch.step()
    assert rows == [3 + 5]
    assert {generation for generation, _ in pieces} == {generations[0], generations[2]}
    for _ in batch:
        pass
    assert [generation.result.ids for generation in generations] == alone(texts())


def passes_until(batch: Any, generation: Any, rows: list[int]) -> int:
    """Return how many prompt passes ran before a request's first token came."""
    before = len(rows)
    while not generation.result.ids:
        batch.step()
    return len(rows) - before


def test_short_prompts_do_not_wait_for_long_ones(alone: Alone) -> None:
    """Guards the time to the first token: a short prompt waits for one chunk of the long ones, at most two."""
    _, speculator, rows = opened()
    batch = speculator.batch(8, prompt_chunk=8)
    prompts = texts((60, 56, 52))
    long = [batch.add(prompt, **OPTIONS) for prompt in prompts]
    batch.step()
    short = texts((4, 3, 5, 4))
    found = []
    for prompt in short:  # one after the other, so that one of them meets the turn of the longest wait
        rows.clear()
        found.append(batch.add(prompt, **OPTIONS | {"max_new_tokens": 1}))
        assert passes_until(batch, found[-1], rows) <= 2
        assert max(rows) <= 8
    assert not any(generation.result.ids for generation in long)
    for _ in batch:
        pass
    assert [generation.result.ids for generation in long] == alone(prompts)
    assert [generation.result.ids for generation in found] == [ids[:1] for ids in alone(short)]


def test_long_prompts_get_on_beside_short_ones() -> None:
    """Guards ageing: a long prompt is read to its end though a shorter one arrives before every pass."""
    _, speculator, _ = opened()
    batch = speculator.batch(8, prompt_chunk=8)
    long = batch.add(texts((40,))[0], **OPTIONS)
    for _ in range(4 * (40 // 8) + 4):
        batch.add(texts((6,))[0], **OPTIONS | {"max_new_tokens": 1})
        batch.step()
    assert long.result.ids


def test_long_prompts_share_what_they_begin_with(alone: Alone) -> None:
    """Guards the rows of a long prompt that is being read: another one waits for them, all but a chunk."""
    _, speculator, _ = opened()
    prompts = texts((3, 5), shared=50)
    batch = speculator.batch(4, prefix_cache=1 << 20, prompt_chunk=8)
    generations = [batch.add(prompt, **OPTIONS) for prompt in prompts]
    for _ in batch:
        pass
    assert [generation.result.ids for generation in generations] == alone(prompts)
    assert generations[1].result.stats.reused_tokens > 50 - 8


def test_what_is_cached_of_a_prompt_counts_as_read() -> None:
    """Guards later turns of long conversations: few tokens are left of them, so they come before a shorter prompt."""
    _, speculator, _ = opened()
    talk, other = texts((60, 30))
    batch = speculator.batch(4, prefix_cache=1 << 20, prompt_chunk=8)
    first = batch.add(talk, **OPTIONS)
    for _ in batch:
        pass
    turn = torch.cat([talk, torch.tensor(first.result.ids[:-1]), torch.tensor([5, 7])])
    waiting, following = batch.add(other, **OPTIONS), batch.add(turn, **OPTIONS)
    batch.step()
    assert following.result.ids
    assert not waiting.result.ids


def test_rounds_go_on_while_prompts_are_read(alone: Alone) -> None:
    """Guards texts from standing still for longer than a chunk of a prompt."""
    _, speculator, _ = opened()
    batch = speculator.batch(4, prompt_chunk=16)
    first = batch.add(texts()[0], **OPTIONS)
    batch.step()
    long = batch.add(texts((60,))[0], **OPTIONS)
    while not long.result.ids:
        batch.step()
    assert first.result.stats.rounds >= 60 // 16
    for _ in batch:
        pass
    assert [first.result.ids, long.result.ids] == alone([texts()[0], texts((60,))[0]])


def test_a_long_prompt_is_read_alone_and_in_its_chunks(alone: Alone) -> None:
    """Guards the option that bounds the rows of a pass."""
    model, speculator, rows = opened()
    config = type(model.generation_config)(prefill_chunk_size=6)
    batch = speculator.batch(4)
    rows.clear()
    generations = [batch.add(prompt, generation_config=config, **OPTIONS) for prompt in texts((5, 20, 3))]
    while not all(generation.result.ids for generation in generations):
        batch.step()
    assert max(rows) <= 6 + 2 * 5
    for _ in batch:
        pass
    assert [generation.result.ids for generation in generations] == alone(texts((5, 20, 3)))


def test_what_prompts_share_is_read_once(alone: Alone) -> None:
    """Guards the prefix cache where requests with the same system prompt arrive at once."""
    _, speculator, _ = opened()
    prompts = texts(shared=40)
    batch = speculator.batch(4, prefix_cache=1 << 20)
    generations = [batch.add(prompt, **OPTIONS) for prompt in prompts]
    for _ in batch:
        pass
    assert [generation.result.ids for generation in generations] == alone(prompts)
    assert sorted(generation.result.stats.reused_tokens for generation in generations) == [0, 40, 40, 40]


def test_prompts_that_do_not_fit_together_are_read_apart(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the texts where a pass over several prompts finds no room, and one for each does."""
    _, speculator, _ = opened()

    def full(*_args: Any) -> Any:
        raise OutOfMemoryError("no room")

    monkeypatch.setattr(speculator.engine, "prefill", full)
    assert decoded(speculator.batch(4), texts()) == alone(texts())


def test_a_drafter_that_fails_for_one_prompt_fails_alone(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the others whose prompts were read by the same pass."""
    _, speculator, _ = opened()
    usual = speculator.drafter.open

    def open_some(start: Any) -> Any:
        if len(start.prompt) == LENGTHS[1]:
            raise ZeroDivisionError("a bug")
        return usual(start)

    monkeypatch.setattr(speculator.drafter, "open", open_some)
    batch = speculator.batch(4)
    generations = [batch.add(prompt, **OPTIONS) for prompt in texts()]
    for _ in batch:
        pass
    assert isinstance(generations[1].error, ZeroDivisionError)
    expected = alone(texts())
    assert [generation.result.ids for generation in generations] == [expected[0], [], *expected[2:]]


def test_an_interrupt_while_sessions_open_comes_once(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards Ctrl-C in the middle of several prompts: its request fails, the others go on, and it is raised once."""
    _, speculator, _ = opened()
    usual = speculator.drafter.open

    def open_some(start: Any) -> Any:
        if len(start.prompt) == LENGTHS[1]:
            raise KeyboardInterrupt
        return usual(start)

    monkeypatch.setattr(speculator.drafter, "open", open_some)
    batch = speculator.batch(4)
    generations = [batch.add(prompt, **OPTIONS) for prompt in texts()]
    with pytest.raises(KeyboardInterrupt):
        batch.step()
    for _ in batch:
        pass
    expected = alone(texts())
    assert [generation.result.ids for generation in generations] == [expected[0], [], *expected[2:]]


def test_an_interrupted_pass_is_run_again(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards prompts whose shared pass was interrupted: nothing of them is lost."""
    _, speculator, _ = opened()
    batch = speculator.batch(4)
    generations = [batch.add(prompt, **OPTIONS) for prompt in texts()]

    def interrupted(*_args: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(speculator.engine, "prefill", interrupted)
        with pytest.raises(KeyboardInterrupt):
            batch.step()
    for _ in batch:
        pass
    assert [generation.result.ids for generation in generations] == alone(texts())


def test_a_prompt_that_fits_nowhere_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards requests that wait beside one whose prompt has no room even where nothing is decoded."""
    model, speculator, _ = opened()
    layer = model.model.layers[1].mlp
    working, room = layer.forward, [1 << 20]

    def full(states: torch.Tensor) -> Any:
        if states.shape[1] >= room[0]:
            raise torch.OutOfMemoryError("no room")
        return working(states)

    monkeypatch.setattr(layer, "forward", full)
    lengths = (LENGTHS[0], 3, 4)
    batch = speculator.batch(4)
    room[0] = LENGTHS[0]
    generations = [batch.add(prompt, **OPTIONS | {"max_new_tokens": 1}) for prompt in texts(lengths)]
    for _ in batch:
        pass
    assert isinstance(generations[0].error, OutOfMemoryError)
    assert [len(generation.result.ids) for generation in generations] == [0, 1, 1]
