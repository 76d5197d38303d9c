"""Prompts that begin alike are computed once: same tokens, fewer computed, within a number of bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models import endless
from pairwise import in_turn
from speculant import PrefixCache, Speculator
from speculant.api.prefix_cache import BLOCK, CANDIDATES, default_limit, shared_prefix
from speculant.core.errors import UsageError

SYSTEM = [(7 * place) % 50 + 5 for place in range(40)]
PROMPTS = [[*SYSTEM, 9, 14, 3], [*SYSTEM, 8, 5], [*SYSTEM[:30], 4, 4, 4], [3, 3, 8, 9]]
GIVEN: dict[str, Any] = {"max_new_tokens": 20, "temperature": 0}


def run(
    speculator: Speculator, prompts: list[list[int]], prefixes: PrefixCache | None, size: int = 2
) -> list[list[int]]:
    """Return the new tokens of each prompt, decoded in a batch."""
    with speculator.batch(size, prefix_cache=prefixes) as batch:
        return [result.ids for result in batch.run([batch.add(prompt, **GIVEN) for prompt in prompts])]


@pytest.mark.parametrize(
    ("name", "method"), in_turn(["llama", "gemma3", "mistral", "gpt2", "bloom", "phi3"], ["lookup", "none"])
)
def test_tokens_are_those_without_it(name: str, method: str) -> None:
    """Guards exactness on full, sliding and alibi attention: copied rows are those that would be computed."""
    speculator, prefixes = Speculator.from_transformers(endless(name), method=method), PrefixCache("1GB")
    expected = run(speculator, PROMPTS, None)
    assert run(speculator, PROMPTS, prefixes) == expected
    assert run(speculator, PROMPTS[::-1], prefixes) == expected[::-1]
    assert prefixes.stats.hits == 2 + 3  # all but the first that began so, then all but the short prompt
    assert prefixes.stats.reused_tokens == 40 + 30 + 42 + 41 + 32


def test_an_earlier_turn_is_found(speculator: Speculator) -> None:
    """Guards conversations: the next turn reads only what is new, and what it reused is in its stats."""
    prefixes = PrefixCache("1GB")
    [answer] = run(speculator, [PROMPTS[0]], prefixes)
    again = [*PROMPTS[0], *answer, 6, 7]
    with speculator.batch(1, prefix_cache=prefixes) as batch:
        generation = batch.add(again, **GIVEN)
        [result] = batch.run([generation])
    assert result.ids == speculator.generate(again, **GIVEN).ids
    assert (result.stats.reused_tokens, result.stats.prompt_tokens) == (len(again) - 3, 3)
    assert len(prefixes) == 1  # the longer text has the shorter one's place


def test_texts_that_are_being_decoded_are_shared(speculator: Speculator) -> None:
    """Guards concurrency: a prompt may begin with one that is not finished, and each goes its own way."""
    prefixes = PrefixCache("1GB")
    assert run(speculator, PROMPTS[:3], prefixes, size=3) == run(speculator, PROMPTS[:3], None)
    assert prefixes.stats.hits == 2


def test_bytes_are_bounded_and_the_oldest_text_leaves(speculator: Speculator) -> None:
    """Guards the limit: the text unused for longest makes room, and nothing is kept where no block fits."""
    probe = PrefixCache("1GB")
    texts = [[start, *range(10, 40)] for start in range(5)]
    run(speculator, texts[:1], probe)
    prefixes = PrefixCache(int(2.5 * probe.stats.bytes))
    run(speculator, texts[:2], prefixes, size=1)
    run(speculator, [[*texts[0], 50]], prefixes, size=1)
    assert prefixes.stats.hits == 1
    run(speculator, texts[2:3], prefixes, size=1)
    assert prefixes.stats.bytes <= prefixes.limit
    assert prefixes.stats.evictions >= 1
    hits = prefixes.stats.hits
    run(speculator, [[*texts[2], 50]], prefixes, size=1)
    assert prefixes.stats.hits == hits + 1
    small = PrefixCache(10)
    run(speculator, texts[:2], small)
    assert (small.stats.texts, small.stats.bytes, small.stats.stored) == (0, 0, 0)


def test_the_beginning_of_a_text_that_does_not_fit_is_kept(
    speculator: Speculator, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards long conversations in a small cache: each turn still finds as much as fits, and a warning tells of it."""
    probe = PrefixCache("1GB")
    run(speculator, [SYSTEM], probe)
    prefixes = PrefixCache(probe.stats.bytes)
    for place, prompt in enumerate([PROMPTS[0], [*PROMPTS[0], *range(5, 25)], [*PROMPTS[0], *range(5, 45)]]):
        assert run(speculator, [prompt], prefixes) == run(speculator, [prompt], None)
        assert (prefixes.stats.texts, prefixes.stats.hits, prefixes.stats.cut) == (1, place, place + 1)
        assert prefixes.stats.bytes <= prefixes.limit
    assert prefixes.stats.reused_tokens == 43 + 48  # the first prompt, then all that is kept: whole blocks
    assert [record.getMessage()[:16] for record in caplog.records] == ["the prefix cache"]


def test_kept_caches_stay_the_results_own(speculator: Speculator) -> None:
    """Guards `keep_caches`: what goes on in a result's cache does not change what is kept."""
    prefixes = PrefixCache("1GB")
    with speculator.batch(1, keep_caches=True, prefix_cache=prefixes) as batch:
        [result] = batch.run([batch.add(PROMPTS[0], **GIVEN)])
    turn = [*PROMPTS[0], *result.ids, 5]
    assert result.cache is not None
    first = speculator.generate(turn, cache=result.cache, **GIVEN).ids
    assert run(speculator, [turn], prefixes) == [first]
    assert prefixes.stats.hits == 1


def test_padding_and_own_caches_are_left_alone(speculator: Speculator) -> None:
    """Guards what is not shared: padded prompts, whose rows have other positions, and prompts with a cache given."""
    prefixes = PrefixCache("1GB")
    run(speculator, PROMPTS[:1], prefixes)
    padded = [0, 0, *PROMPTS[0]]
    mask = torch.tensor([[0, 0, *([1] * len(PROMPTS[0]))]])
    with speculator.batch(1, prefix_cache=prefixes) as batch:
        [result] = batch.run([batch.add(padded, attention_mask=mask, **GIVEN)])
    assert result.ids == run(speculator, PROMPTS[:1], None)[0]
    assert prefixes.stats.hits == 0


def test_a_store_serves_one_speculator(speculator: Speculator) -> None:
    """Guards against rows of another model, and against limits that are none."""
    prefixes = PrefixCache("1GB")
    speculator.batch(2, prefix_cache=prefixes)
    other = Speculator.from_transformers(endless("qwen2"), method="none")
    with pytest.raises(UsageError, match="another model"):
        other.batch(2, prefix_cache=prefixes)
    with pytest.raises(UsageError, match="prefix_cache"):
        speculator.batch(2, prefix_cache="much")


class Rows:
    """An engine whose caches are their numbers of bytes."""

    changes = 0

    def compact_cache(self, cache: int) -> int:
        return cache

    def held_bytes(self, cache: int) -> int:
        return cache


def opened(limit: int = 1 << 40) -> PrefixCache:
    prefixes = PrefixCache(limit)
    prefixes.attach(Rows())  # type: ignore[arg-type]
    return prefixes


def test_no_text_is_kept_twice() -> None:
    """Guards memory: a text within a kept one is not kept, those within a new one leave, and the bytes add up."""
    random, prefixes, kept = np.random.default_rng(5), opened(), dict[tuple[int, ...], int]()
    whole = [random.integers(0, 2, 4 * BLOCK, np.int32) for _ in range(3)]
    whole += [np.append(each[: 2 * BLOCK], random.integers(0, 2, 2 * BLOCK, np.int32)) for each in whole]
    for step in range(1, 400):
        text = whole[random.integers(len(whole))][: random.integers(BLOCK, BLOCK + 1 + step * BLOCK // 135)]
        prefixes.put(text, step)
        own = tuple(text.tolist())
        if not any(other[: len(own)] == own for other in kept):
            kept = {other: size for other, size in kept.items() if own[: len(other)] != other} | {own: step}
    assert {tuple(entry.tokens.tolist()): entry.size for entry in prefixes._entries.values()} == kept
    assert (prefixes.stats.texts, prefixes.stats.bytes) == (len(kept), sum(kept.values()))
    for number in list(prefixes._entries):
        prefixes._drop(number)
    assert (prefixes._blocks, prefixes._ends, prefixes.stats.texts, prefixes.stats.bytes) == ({}, {}, 0, 0)


def test_a_text_is_compared_with_few_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards servers with thousands of kept texts, where each end of a text would take milliseconds of all requests."""
    compared, random = list[int](), np.random.default_rng(5)

    def counted(left: np.ndarray, right: np.ndarray) -> int:
        compared.append(1)
        return shared_prefix(left, right)

    monkeypatch.setattr("speculant.api.prefix_cache.shared_prefix", counted)
    for own in (40, 10):  # beyond the block that all have in common, or within the next one
        prefixes, system = opened(), np.arange(2 * BLOCK, dtype=np.int32)
        for _ in range(300):
            prefixes.put(np.concatenate([system, random.integers(0, 1000, own, np.int32)]), 1)
        assert prefixes.stats.texts == 300
        assert len(compared) <= 300 * CANDIDATES


def test_shared_prefix() -> None:
    """Guards the comparison at both ends."""
    left = np.arange(BLOCK, dtype=np.int32)
    assert shared_prefix(left, left[:5]) == 5
    assert shared_prefix(left, left + 1) == 0
    assert shared_prefix(left[:0], left) == 0


@pytest.fixture(scope="module")
def speculator() -> Speculator:
    return Speculator.from_transformers(endless("llama"), method="lookup")


def test_a_changed_model_shares_nothing_with_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards adapters, hooks and weights that change between batches: kept rows are those of another model."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, prefixes = endless("llama"), PrefixCache("1GB")
    speculator = Speculator.from_transformers(model, method="lookup", fast=False)
    run(speculator, PROMPTS[:1], prefixes)
    assert len(prefixes) == 1
    model.model.layers[0].self_attn.register_forward_hook(lambda _, __, output: (output[0] * 1.5, *output[1:]))
    assert run(speculator, PROMPTS[:1], prefixes) == [speculator.generate(PROMPTS[0], **GIVEN).ids]
    assert prefixes.stats.hits == 0


def test_a_server_keeps_a_tenth_of_the_free_memory() -> None:
    """Guards small machines and large ones: the size that a server chooses by itself."""
    sizes = [default_limit(free) for free in (0, 1 << 30, 20 << 30, 1 << 40)]
    assert sizes == [256 << 20, 256 << 20, 2 << 30, 8 << 30]
