"""Texts that cross what a config limits: rotary factors, positions, windows that only a cache knows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from architecture_matrix.catalogue import build
from architecture_matrix.compare import Guesses
from models import DYNAMIC, PHI3, deep_model, tiny_model
from speculant import Speculator
from speculant.engines.hf.engine import HFEngine

NAMES = [
    pytest.param("phi3 (rope: longrope)", marks=PHI3),
    "llama (rope: longrope)",
    pytest.param("llama (rope: dynamic)", marks=DYNAMIC),
    "llama (a window left in its config)",
]


def plain(model: Any, prompt: list[int], new: int) -> list[int]:
    ids = torch.tensor([prompt])
    text: list[int] = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False)[0]
    return text[len(prompt) :].tolist()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [*NAMES[:3], pytest.param(NAMES[3], marks=pytest.mark.slow)])  # it has no limit
@pytest.mark.parametrize("length", [3, pytest.param(13, marks=pytest.mark.slow), 14, 15, 20])
def test_plain_and_drafted_texts_are_those_of_generate(name: str, length: int) -> None:
    """Guards factors that change for all rows of a pass, at every place of the limit (14, 32) in prompt and text."""
    model = build(name, "sdpa")
    prompt = [3 + (7 * i + length) % 50 for i in range(length)]
    expected = plain(model, prompt, 19)
    speculator = Speculator.from_transformers(model, method="none", nodes=8, fast=False)
    for drafter in (speculator.drafter, Guesses({tuple(prompt): expected})):
        speculator.drafter = drafter
        ids = torch.tensor([prompt])
        ours = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=19, do_sample=False, custom_generate=speculator
        )
        assert ours[0, length:].tolist() == expected


@pytest.mark.parametrize("name", NAMES)
def test_texts_on_both_sides_of_a_limit_share_a_batch(name: str) -> None:
    """Guards batches: one text's positions must not choose another's factors."""
    model = build(name, "sdpa")
    prompts = [[5, 9, 14, 3], [8, 5, 9] * 6, [3, 8] * 6, [7] * 13]
    texts = {tuple(prompt): plain(model, prompt, 12) for prompt in prompts}
    speculator = Speculator.from_transformers(model, method="none", nodes=8, fast=False)
    speculator.drafter = Guesses(texts)
    results = speculator.generate_batch(prompts, size=4, max_new_tokens=12, temperature=0)
    assert [result.ids for result in results] == list(texts.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_long_prompt_is_read_at_once(name: str) -> None:
    """Guards chunked prefill: a chunk below the limit would be rotated by factors of a shorter text."""
    model = build(name, "sdpa")
    ids = torch.tensor([[3 + i % 40 for i in range(34)]])
    whole, pieces = HFEngine(model).open(ids).prefill(), HFEngine(model).open(ids).prefill(5)
    assert whole is not None
    assert pieces is not None
    torch.testing.assert_close(pieces.logits, whole.logits)


@PHI3
def test_a_continued_conversation_is_read_anew_beyond_the_limit() -> None:
    """Guards Phi-3: rows of an earlier turn have the factors of a shorter text."""
    model = build("phi3 (rope: longrope)", "sdpa")
    speculator = Speculator.from_transformers(model, method="none", fast=False)
    first = speculator.generate([5, 9, 14, 3, 8], max_new_tokens=4, temperature=0)
    prompt = [5, 9, 14, 3, 8, *first.ids, 7, 7, 7, 7, 7, 7, 7, 7]
    assert speculator.generate(prompt, max_new_tokens=6, temperature=0, cache=first.cache).ids == plain(
        model, prompt, 6
    )


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_draft_ends_where_positions_do(name: str) -> None:
    """Guards tables of positions: no node lies beyond the last one, and the text goes on up to it."""
    sizes: dict[str, Any] = {"max_position_embeddings": 24} if name == "llama" else {}
    model = deep_model(name, **sizes)
    if name == "gpt2":
        model.config.max_position_embeddings = 256
    positions = int(model.config.max_position_embeddings)
    prompt = [3 + i % 50 for i in range(positions - 12)]
    expected = plain(model, prompt, 12)
    speculator = Speculator.from_transformers(model, method="none", nodes=40, fast=False)
    speculator.drafter = Guesses({tuple(prompt): [*expected, *expected]})
    result = speculator.generate(prompt, max_new_tokens=40, temperature=0)
    assert result.ids == expected
    assert result.stats.accepted > 0


def test_depth_shrinks_to_nothing_at_the_last_position() -> None:
    """Guards the engine's own limit, whoever drafts."""
    engine = HFEngine(tiny_model("llama", max_position_embeddings=16))
    depths = []
    for length in (4, 14, 15):
        cache = engine.open(torch.arange(3, 3 + length)[None])
        cache.prefill()
        depths.append(cache.depth)
    assert depths == [11, 1, 0]
