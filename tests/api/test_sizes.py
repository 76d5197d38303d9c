"""Draft sizing over the lifetime of a speculator: the room of a pass, and the clock."""

from __future__ import annotations

import time

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
