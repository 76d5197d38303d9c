"""Draft sizing over the lifetime of a speculator: the room of a pass, and the clock."""

from __future__ import annotations

import time
from typing import Any

import pytest

from speculant import Speculator
from speculant.api.loading import load_model
from speculant.api.sizes import max_rows
from speculant.core.engine import RequestedOutputs


def test_large_batches_have_room_for_every_text() -> None:
    """Guards batches of 64: with the nodes of a single draft, each text would get one."""
    needs = RequestedOutputs()
    assert [max_rows(needs, size) for size in (1, 16, 64)] == [64, 15 + 64, 63 + 3 * 64]


def test_sizes_follow_the_clock_of_what_does_the_work() -> None:
    """Guards busy machines and servers, and draft models in threads of their own, whose work is waited for."""
    model, tokenizer = load_model(None)
    speculator = Speculator.from_transformers(model, tokenizer, method="mix")
    assert speculator.parts(4).work_clock is time.thread_time
    assert speculator.parts(4).clock is time.perf_counter
    pearl = Speculator.from_transformers(model, tokenizer, method="pearl", draft_model=model, fast=speculator.fast)
    assert pearl.parts().work_clock is time.perf_counter


@pytest.mark.parametrize("size", [1, 2])
def test_sizes_know_how_long_texts_were_however_they_ended(size: int) -> None:
    """Guards texts that end by stop strings: what remains of a text decides whether a head reads its prompt."""
    model, tokenizer = load_model(None)
    speculator = Speculator.from_transformers(model, tokenizer, method="mix")
    options: dict[str, Any] = {"max_new_tokens": 40, "temperature": 0}
    if size == 1:
        stopped = speculator.generate("One day, a girl", stop=".", **options)
        stream = speculator.stream("One day, a girl", **options)
        next(piece for piece in stream if len(stream.result.ids) > 9)
        left = stream.result
    else:
        with speculator.batch(size) as batch:
            generations = [batch.add("One day, a girl", stop=stop, **options) for stop in (".", None)]
            while not generations[0].done or len(generations[1].result.ids) < 10:
                batch.step()
        stopped, left = [generation.result for generation in generations]
    known = [speculator.parts(size).sizing.open().lengths for _ in range(2)]
    assert list(known[0]) == list(known[1]) == [len(stopped.ids) - 1, len(left.ids) - 1]
