"""GGUF models whose layers keep a running state: chains are verified, and nothing is left of what is dropped."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch

from ggufs import needs_llamacpp, open_engine
from guesses import alone, guessing, prompts
from interrupts import interrupted
from models import VOCABULARY
from passes import IDS, Greedy, greedy_texts, plain_text
from speculant import Speculator
from speculant.core.errors import ModelError, OutOfMemoryError, UnsupportedError
from speculant.core.tree import DraftTree
from speculant.engines.llamacpp import model as model_module
from speculant.engines.llamacpp.context import LlamaContext
from speculant.engines.llamacpp.replay_cache import MAX_PENDING
from state_ggufs import KINDS, state_gguf

needs_llamacpp()
PROMPT = IDS[0].tolist()
TOKENS = 40
OPTIONS: dict[str, Any] = {"max_new_tokens": TOKENS, "temperature": 0}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Return a kind of model."""
    return str(request.param)


@pytest.fixture(scope="module")
def engine(kind: str) -> Any:
    """Return the engine of a model."""
    return open_engine(state_gguf(kind)[0], context=1000, cache_tokens=4000)


@pytest.fixture(scope="module")
def text(kind: str) -> list[int]:
    """Return how transformers' model goes on from the prompt."""
    return plain_text(state_gguf(kind)[1], IDS, TOKENS)


def row(cache: Any, *tokens: int) -> Any:
    """Run a chain of rows below what is appended; return the best token after each."""
    before, count = cache.uncommitted, len(tokens)
    parents = np.arange(before - 1, before + count - 1, dtype=np.int32)
    return cache.forward(np.array(tokens, np.int32), parents).logits.argmax(-1).tolist()


def read(engine: Any, prompt: list[int] = PROMPT) -> Any:
    """Return a cache whose prompt is read."""
    cache = engine.open(torch.tensor([prompt]))
    cache.prefill()
    return cache


def test_texts_are_those_of_transformers(engine: Any, kind: str) -> None:
    """Guards greedy texts with good and bad chains, one sequence a pass and several, against the same weights."""
    model = state_gguf(kind)[1]
    several = [IDS, IDS[:, :7], IDS[:, 3:], IDS[:, :1]]
    texts = [plain_text(model, ids, TOKENS) for ids in several]
    for _ in range(2):
        assert [greedy_texts(engine, [ids], [own])[0] for ids, own in zip(several, texts, strict=True)] == texts
        assert greedy_texts(engine, several, texts) == texts


def test_seeds_stops_and_batches(engine: Any) -> None:
    """Guards requests with options of their own, alone and in batches: the texts of plain decoding in llama.cpp."""
    options: list[dict[str, Any]] = [
        {"max_new_tokens": TOKENS, "temperature": 1.0, "seed": seed, "top_k": 20} for seed in range(3)
    ]
    options += [OPTIONS, OPTIONS | {"repetition_penalty": 1.3}, OPTIONS | {"eos_token_id": 9}]
    texts = alone(engine.model, options)
    speculator = guessing(engine.model, texts)
    assert [speculator.generate(prompt, **own).ids for prompt, own in zip(prompts(), options, strict=True)] == texts
    for size in (2, 6):
        with speculator.batch(size) as batch:
            found = batch.run([batch.add(prompt, **own) for prompt, own in zip(prompts(), options, strict=True)])
        assert [result.ids for result in found] == texts


def test_what_users_are_told(engine: Any) -> None:
    """Guards the notes and the capabilities: chains, and a state for a text and one for its draft."""
    speculator = Speculator.from_transformers(engine.model, method="mix", nodes=6)
    plain = Speculator.from_transformers(engine.model, method="none")
    expected = plain.generate(PROMPT, **OPTIONS).ids
    found = [speculator.generate(PROMPT, **OPTIONS) for _ in range(2)]
    assert [result.ids for result in found] == [expected] * 2
    assert found[1].stats.accepted > TOKENS // 2
    assert "verified as chains, and accepted tokens are read again" in found[0].stats.notes[0]
    assert (engine.capabilities.trees, engine.capabilities.sequences) == (False, 8)
    cache = read(engine)
    with pytest.raises(UnsupportedError, match="chains only"):
        cache.forward(*DraftTree.from_paths([[1], [2]]).rows(5))
    cache.release()


def test_long_prompts_and_drafts(engine: Any, kind: str) -> None:
    """Guards prompts and chains of more rows than a pass takes, which are split."""
    prompt = [(5 * place + place // 7) % VOCABULARY for place in range(600)]
    expected = plain_text(state_gguf(kind)[1], torch.tensor([prompt[:30]]), 1)
    cache = read(engine, prompt[:30])
    assert row(cache, *expected, *prompt[:570])[0] == row(read(engine, [*prompt[:30], *expected][:-1]), *expected)[0]
    cache.keep(range(1))
    longer = read(engine, prompt)
    best = longer.forward(np.array(prompt[:1], np.int32), np.array([-1], np.int32)).logits.clone()
    longer.rollback()
    split = read(engine, prompt[:20])
    chain = split.forward(np.array([*prompt[20:], prompt[0]], np.int32), np.arange(-1, 580, dtype=np.int32)).logits
    assert (chain[-1] - best[0]).abs().max() < 1e-3


def test_rejected_rows_leave_nothing(engine: Any, text: list[int]) -> None:
    """Guards the state after every number of kept rows, with and without tokens that are read again."""
    cache = read(engine)
    at = 0
    for kept in (1, 2, 0, 3, 1, 4, 1, 1, 5):
        wrong = [(text[at + kept] + 1) % VOCABULARY] * 2
        found = row(cache, *text[at : at + kept], *wrong)
        assert found[:kept] == text[at + 1 : at + 1 + kept]
        cache.keep(range(kept))
        at += kept
    assert cache.text.behind == at > MAX_PENDING
    assert row(cache, *text[at : at + 3]) == text[at + 1 : at + 4]
    cache.keep(range(3))
    assert cache.text.behind == 0
    assert cache.text.tokens == [*PROMPT, *text[: at + 3]]


def test_rows_in_several_calls(engine: Any, text: list[int]) -> None:
    """Guards rows that are appended one by one, of which some are kept, on the text's own state and on a copy."""
    for first in (1, 2):
        cache = read(engine)
        row(cache, *text[:first])
        assert row(cache, *text[first:4]) == text[first + 1 : 5]
        with pytest.raises(ValueError, match="not a path"):
            cache.keep([1])
        cache.keep([0, 1])
        assert row(cache, *text[2:4]) == text[3:5]
        cache.release()


def test_a_next_turn_goes_on(engine: Any, text: list[int]) -> None:
    """Guards a text that ends with tokens that its state has not read, and one that is cropped."""
    cache = read(engine)
    row(cache, *text[:3], 0, 0)
    cache.keep(range(3))
    held = cache.detach()
    assert held.behind == 3
    again = engine.open(torch.tensor([[*PROMPT, *text[:4]]]), cache=held)
    assert again.unread == 1
    assert int(again.prefill().logits[0].argmax()) == text[4]
    engine.crop(held, len(PROMPT))
    last = engine.open(torch.tensor([[*PROMPT, *text[:2]]]), cache=again.detach())
    assert int(last.prefill().logits[0].argmax()) == text[2]


def test_texts_leave_a_full_cache(kind: str, text: list[int]) -> None:
    """Guards ids: texts that nobody decodes leave for the copies of drafts and are read again; all ids come back."""
    engine = open_engine(state_gguf(kind)[0], sequences=4)
    held = [read(engine) for _ in range(6)]
    for cache in held:
        assert row(cache, *text[:2], 0)[:2] == text[1:3]
        cache.keep(range(2))
    for cache in held:
        assert row(cache, *text[2:4]) == text[3:5]
        cache.keep(range(2))
    del held, cache
    gc.collect()
    read(engine)
    assert len(engine.context._free_ids) == 3


@pytest.mark.parametrize("fault", ["full", "memory", "failure"])
def test_a_pass_that_fails(fault: str, engine: Any, text: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards all texts, those beside the one that failed too: llama.cpp may have moved their states."""
    caches = [read(engine) for _ in range(2)]
    codes = {"full": 1, "memory": -2, "failure": -3}
    errors = {"full": OutOfMemoryError, "memory": OutOfMemoryError, "failure": ModelError}
    for count in (1, 3):
        with monkeypatch.context() as patched:
            patched.setattr(engine.context._api, "llama_decode", lambda *_: codes[fault])
            with pytest.raises(errors[fault]):
                row(caches[0], *text[:count])
        assert (caches[0].uncommitted, caches[0].length) == (0, len(PROMPT))
        for cache in caches:
            assert row(cache, *text[:3]) == text[1:4]
            cache.rollback()


def test_interrupts(kind: str, text: list[int]) -> None:
    """Guards Ctrl-C at any line of a pass over several texts: after `rollback` each goes on as if it had not begun."""
    engine = open_engine(state_gguf(kind)[0])
    sequences = [Greedy(engine, IDS, text) for _ in range(2)]
    for line in range(1, 1000, 7):
        drafts = [each.draft() for each in sequences]
        batch = [(each.cache, each.ids[-1], tree) for each, tree in zip(sequences, drafts, strict=True)]
        reached = interrupted(lambda: engine.forward(batch), line)  # noqa: B023
        for each in sequences:
            each.cache.rollback()
        passes = engine.forward(batch)
        for each, tree, result in zip(sequences, drafts, passes, strict=True):
            if len(each.ids) < TOKENS - 8:
                each.commit(tree, result.logits)
            else:
                each.cache.rollback()
            assert each.ids == text[: len(each.ids)]
        if not reached:
            return
    raise AssertionError("a pass has fewer lines")


def test_copies_are_probed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a llama.cpp whose copies are not exact: the model is refused, or decoded plainly."""
    path, model = state_gguf(kind)
    with monkeypatch.context() as patched:
        patched.setattr(LlamaContext, "copy", lambda *_: None)
        speculator = Speculator.from_gguf(path, threads=1, engine="llamacpp")
        result = speculator.generate(PROMPT, **OPTIONS)
        assert result.ids == plain_text(model, IDS, TOKENS)
        assert "decoded plainly, without drafts" in result.stats.notes[-1]
        with pytest.raises(UnsupportedError, match="in a chain differ"):
            open_engine(path).probe()


def test_compressed_caches_are_decoded_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards architectures whose cache llama.cpp neither cuts nor shares: one token a pass, with the reason."""
    monkeypatch.setattr(model_module, "_COMPRESSED", ("mamba",))
    path, model = state_gguf("mamba")
    speculator = Speculator.from_gguf(path, threads=1, engine="llamacpp")
    result = speculator.generate(PROMPT, **OPTIONS)
    assert result.ids == plain_text(model, IDS, TOKENS)
    assert "'mamba' is compressed" in result.stats.notes[-1]
    assert result.stats.drafted == 0
    with pytest.raises(UnsupportedError, match="is compressed"):
        Speculator.from_gguf(path, threads=1, engine="llamacpp", strict=True)
