"""The check of drafted rows while a model is used."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from models import tiny_model
from passes import IDS, opened, plain_text
from speculant import Speculator
from speculant.api.result import Stream
from speculant.core.errors import DraftsRefusedError
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.probe import live_check
from trees import make_tree

PROMPT = IDS[0].tolist()
TREE = make_tree([7, 8, 9, 10], [-1, 0, -1, 2])


class Sly:
    """A hook that changes passes over several rows once it is told to, as nothing before could have shown."""

    active = False

    def __call__(self, module: Any, given: Any, output: torch.Tensor) -> torch.Tensor:
        return output * 1.8 if self.active and 1 < output.shape[1] < 12 else output


def test_drafting_ends_where_drafts_change_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards what slips past the probe: the request says so and goes on plainly, as do those after it."""
    monkeypatch.setattr(live_check, "SAVED", 4.0)
    model, sly = tiny_model("llama"), Sly()
    model.model.layers[1].mlp.register_forward_hook(sly)
    speculator = Speculator.from_transformers(model, method="lookup", nodes=6, fast=False)
    options: dict[str, Any] = {"max_new_tokens": 40, "temperature": 0, "eos_token_id": None}
    assert not speculator.generate(PROMPT, **options).stats.notes
    sly.active = True
    result = speculator.generate(PROMPT, **options)
    assert len(result.ids) == 40
    assert any("a check while decoding found" in note for note in result.stats.notes)
    again = speculator.generate(PROMPT, **options)
    assert again.ids == plain_text(model, IDS, 40)
    assert any("decoded plainly" in note for note in again.stats.notes)


def test_its_time_is_not_that_of_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the sizes of drafts: plain passes of the check would make the first drafted passes look expensive."""
    speculator = Speculator.from_transformers(tiny_model("llama"), method="lookup", nodes=6, fast=False)
    ticks, prepare = itertools.count(), live_check.LiveCheck.prepare
    sampled = list[bool]()

    def slow(check: live_check.LiveCheck, drafted: Any) -> Any:
        found = prepare(check, drafted)
        sampled.append(found is not None)
        for _ in range(1000):
            next(ticks)
        return found

    monkeypatch.setattr(live_check.LiveCheck, "prepare", slow)
    generation = speculator.prepare(PROMPT, max_new_tokens=20, temperature=0)
    stream = Stream(generation, replace(speculator.parts(), work_clock=lambda: float(next(ticks))))
    assert [*stream]
    assert any(sampled)
    assert stream.result.stats.target_seconds < 100


def test_a_single_difference_may_be_a_tie() -> None:
    """Guards mixtures of experts: one doubtful sample of four ends nothing, two do."""
    engine = HFEngine(tiny_model("llama"))
    check = live_check.LiveCheck(engine._runner)
    cache = opened(engine)
    for wrong, ends in ((1, False), (2, True)):
        check._doubts = []
        for number in range(4):
            check._saved = 4.0
            sample = check.prepare([(cache, 4, TREE)])
            assert sample is not None
            [result] = engine.forward([(cache, 4, TREE)])
            cache.rollback()
            if number < wrong:
                result.logits.mul_(3)
            if ends and number == 1:
                with pytest.raises(DraftsRefusedError, match="decoded plainly"):
                    check.compare(sample, result)
                break
            check.compare(sample, result)
    assert not engine.capabilities.drafts
    assert cache.depth == 0


def test_plain_passes_are_saved_up() -> None:
    """Guards the cost: over many rounds a sample takes 1/256 plain passes a round."""
    engine = HFEngine(tiny_model("llama"))
    cache, passes = opened(engine), list[int]()
    forward = cache.forward

    def counting(*args: Any, **options: Any) -> Any:
        passes.append(1)
        return forward(*args, **options)

    cache.forward = counting  # type: ignore[method-assign]
    for _ in range(2000):
        engine._live.prepare([(cache, 4, TREE)])
    assert 0 < len(passes) <= 2000 / 256 + live_check.DEEPEST + 1  # the first round's
    assert cache.uncommitted == 0


def test_half_precision_is_judged_by_what_is_chosen() -> None:
    """Guards bf16: rounding moves logits, which matters only where another token wins by more than that."""
    expected = torch.randn(2, 50, generator=torch.Generator().manual_seed(2)).bfloat16()
    assert not live_check._differs(expected + 0.1, expected, torch.bfloat16)
    assert live_check._differs(-expected, expected, torch.bfloat16)
