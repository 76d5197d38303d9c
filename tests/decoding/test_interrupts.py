"""Ctrl-C at any line of a round: the model, the next request, other threads and the rest of a batch go on as before."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from interrupts import interrupted
from models import tiny_model
from passes import plain_text
from speculant import Speculator
from speculant.api.batch import Batch

PROMPTS = [[5, 9, 14, 3, 8, 5, 9, 14, 3, 8, 5, 9], [7, 3, 7, 3, 7], [4, 9, 4, 4, 9, 4, 20]]
TOKENS = 9
# Every 61st line, from another first line in each variant; slow tests meet every 31st.
STRIDES = [61, pytest.param(31, marks=pytest.mark.slow)]


def options(place: int, temperature: float) -> dict[str, Any]:
    return {"max_new_tokens": TOKENS, "temperature": temperature, "seed": 5 + place, "eos_token_id": None}


class Model:
    """A tiny model, and what it yields when nothing disturbs it."""

    def __init__(self, method: str, *, fast: bool, temperature: float) -> None:
        self.model, self.temperature = tiny_model("llama", num_hidden_layers=1), temperature
        self.config = dict(vars(self.model.config))
        self.ids = torch.tensor([PROMPTS[0]])
        self.greedy = plain_text(self.model, self.ids, TOKENS)
        plain = Speculator.from_transformers(self.model, method="none", fast=False)
        self.texts = [plain.generate(prompt, **self.options(place)).ids for place, prompt in enumerate(PROMPTS)]
        draft_model = self.model if method == "draft-model" else None
        self.speculator = Speculator.from_transformers(
            self.model, method=method, nodes=6, fast=fast, draft_model=draft_model
        )
        for place, prompt in enumerate(PROMPTS):  # so that drafts are accepted
            assert self.speculator.generate(prompt, **self.options(place)).ids == self.texts[place]

    def options(self, place: int) -> dict[str, Any]:
        return options(place, self.temperature)

    def check(self, *, thread: bool) -> None:
        """Check the model, the speculator's next request and, if asked, another thread's."""
        assert vars(self.model.config) == self.config
        assert not any("forward" in each.__dict__ or each._forward_hooks for each in self.model.modules())
        assert self.speculator.generate(PROMPTS[0], **self.options(0)).ids == self.texts[0]
        if not thread:
            return
        found: list[list[int]] = []

        def other() -> None:
            found.append(plain_text(self.model, self.ids, TOKENS))
            found.append(self.speculator.generate(PROMPTS[0], **self.options(0)).ids)

        worker = threading.Thread(target=other)
        worker.start()
        mine = plain_text(self.model, self.ids, TOKENS)
        worker.join()
        assert [mine, *found] == [self.greedy, self.greedy, self.texts[0]]


VARIANTS = [("mix", False, 0.0), ("mix", True, 0.7), ("draft-model", False, 0.0), ("aded", True, 0.0)]


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize(("method", "fast", "temperature"), VARIANTS)
def test_an_interrupted_round_leaves_nothing_behind(method: str, fast: bool, temperature: float, stride: int) -> None:
    """Guards single requests: the text is right so far and goes on from its cache, and all else is as before."""
    parts = Model(method, fast=fast, temperature=temperature)
    line, reached = 1 + VARIANTS.index((method, fast, temperature)), True
    while reached:
        stream = parts.speculator.stream(PROMPTS[1], **parts.options(1))
        pieces = iter(stream)
        next(pieces)
        next(pieces)
        reached = interrupted(lambda: next(pieces, None), line)  # noqa: B023
        ids, cache = stream.result.ids, stream.result.cache
        assert ids == parts.texts[1][: len(ids)]
        [rows] = {layer.keys.shape[-2] for layer in cache.layers}
        assert len(PROMPTS[1]) <= rows < len(PROMPTS[1]) + len(ids)
        if reached and len(ids) < TOKENS and not temperature:
            rest = parts.options(1) | {"max_new_tokens": TOKENS - len(ids)}
            more = parts.speculator.generate([*PROMPTS[1], *ids], cache=cache, **rest)
            assert ids + more.ids == parts.texts[1]
        if line % 5 == 0:
            parts.check(thread=line % 2 == 0)
        line += stride
    assert line > 100
    parts.check(thread=True)


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize(("method", "fast", "temperature"), VARIANTS)
def test_a_batch_goes_on_after_an_interrupted_round(method: str, fast: bool, temperature: float, stride: int) -> None:
    """Guards batches: at most one request fails, and the others yield what they yield alone."""
    parts = Model(method, fast=fast, temperature=temperature)
    line, reached, failures = 1 + VARIANTS.index((method, fast, temperature)), True, 0
    while reached:
        batch = parts.speculator.batch(len(PROMPTS), keep_caches=True)
        generations = [batch.add(prompt, **parts.options(place)) for place, prompt in enumerate(PROMPTS)]
        pieces = [*batch.step(), *batch.step()]
        reached = interrupted(lambda: pieces.extend(batch.step()), line)  # noqa: B023
        pieces += finish(batch)
        failed = [each for each in generations if each.error is not None]
        assert len(failed) <= int(reached)
        failures += len(failed)
        for generation, text in zip(generations, parts.texts, strict=True):
            ids = generation.result.ids
            assert generation.done
            assert ids == (text[: len(ids)] if generation in failed else text)
            if generation not in failed and not reached:
                assert ids == [token for each, piece in pieces if each is generation for token in piece.tokens]
        if line % 5 == 0:
            parts.check(thread=line % 2 == 0)
        line += 3 * stride + 4
    assert line > 150
    assert failures
    assert not parts.speculator.engine.batch_note
    parts.check(thread=True)


def finish(batch: Batch) -> list[Any]:
    """Run rounds until every request has left; return their pieces."""
    pieces: list[Any] = []
    for _ in range(3 * TOKENS):
        if not len(batch):
            return pieces
        pieces += batch.step()
    raise AssertionError("the batch does not end")
