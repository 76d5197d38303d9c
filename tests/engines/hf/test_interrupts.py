"""Ctrl-C anywhere in a pass: the sequence, the model's own `generate` and other threads go on as if nothing was."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from interrupts import interrupted
from models import tiny_model
from pairwise import in_turn
from passes import IDS, opened, plain_text
from speculant.core.engine import RequestedOutputs
from speculant.engines.hf.acceleration import PlainPasses
from speculant.engines.hf.cpu.accelerate import prepare_model
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.target_cache import HFTargetCache
from trees import make_tree

TREE = make_tree([7, 8, 9, 10], [-1, 0, -1, 2])
PROMPTS = [IDS, IDS[:, :5]]
STRIDES = [29, pytest.param(13, marks=pytest.mark.slow)]  # of about 2,000 lines; with 1, every line was tried


def everything_works(model: Any, config: dict[str, Any], text: list[int]) -> None:
    """Check that the model is as it was, for this thread and another."""
    assert vars(model.config) == config
    assert not any("forward" in module.__dict__ or module._forward_hooks for module in model.modules())
    found: list[list[int]] = []
    thread = threading.Thread(target=lambda: found.append(plain_text(model, IDS, 4)))
    thread.start()
    found.append(plain_text(model, IDS, 4))
    thread.join()
    assert found == [text, text]


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize(
    ("attention", "sequences", "fast"), in_turn([("sdpa", 1), ("sdpa", 2), ("eager", 2)], [True, False])
)
def test_an_interrupted_pass_leaves_nothing_behind(attention: str, sequences: int, fast: bool, stride: int) -> None:
    """Guards a round's pass and what is kept of it, single and in a batch, with hidden states."""
    model = tiny_model("llama", attention)
    engine = HFEngine(model, acceleration=prepare_model(model, fast))
    needs, text, config = (
        RequestedOutputs(top_k=2, hidden_layers=(0, -1)),
        plain_text(model, IDS, 4),
        dict(vars(model.config)),
    )
    caches = [opened(engine, ids) for ids in PROMPTS[:sequences]]
    lengths = [cache.length for cache in caches]

    def forward() -> list[Any]:
        return engine.forward([(cache, 4, TREE) for cache in caches], needs)

    expected = [result.logits for result in forward()]
    for cache in caches:
        cache.rollback()

    def work() -> None:
        forward()
        for cache in caches:
            cache.keep([0, 1, 2])

    line, reached = 1 + 10 * sequences + 5 * fast, True  # each case at other lines
    while reached:
        reached = interrupted(work, line)
        for cache, length in zip(caches, lengths, strict=True):
            cache.rollback()
            assert cache.length in (length, length + 3)
            crop(cache, length)
        for result, logits in zip(forward(), expected, strict=True):
            torch.testing.assert_close(result.logits, logits, atol=1e-4, rtol=1e-4)
        for cache in caches:
            cache.rollback()
        if line // stride % 10 == 0:
            everything_works(model, config, text)
        line += stride
    assert line > 100
    assert not engine.batch_note
    everything_works(model, config, text)


def crop(cache: HFTargetCache, length: int) -> None:
    """Go back to a length that was committed before."""
    cache._length = length
    cache.rollback()


@pytest.mark.parametrize("rows", [None, 4])
def test_an_interrupted_prefill_may_be_repeated(rows: int | None) -> None:
    """Guards prompts: what was read by earlier passes stays, and the call may be repeated."""
    model, needs = tiny_model("llama"), RequestedOutputs(hidden_layers=(1,), prompt=True)
    engine = HFEngine(model, acceleration=PlainPasses(prompt_rows=rows))
    with torch.no_grad():
        expected = model(IDS).logits[0, -1:]
    line, reached = 1, True
    while reached:
        cache = engine.open(IDS)
        cache.prefill(5, needs=needs)
        reached = interrupted(lambda: cache.prefill(needs=needs), line)  # noqa: B023
        if reached:
            assert (cache.unread, cache.cache.get_seq_length()) == (7, 5)
            result = cache.prefill(needs=needs)
            assert result is not None
            torch.testing.assert_close(result.logits, expected, atol=1e-4, rtol=1e-4)
            assert result.hidden.shape == (12, 1, 32)
        line += 3
    assert line > 30
