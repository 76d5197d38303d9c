"""One request's loop: what was said, what is in the cache and what was counted agree, however it ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor

from faults import Full
from guesses import LENGTHS, prompts
from models import tiny_model
from speculant import Speculator
from speculant.api import decoder
from speculant.core.engine import Pass
from speculant.core.errors import OutOfMemoryError, UsageError
from speculant.core.tree import DraftTree
from speculant.drafters.none import EmptySession
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.target_cache import HFTargetCache
from speculant.sizing.fixed import FixedSizing
from speculant.sizing.policy import AdaptiveSizing

GREEDY: dict[str, Any] = {"max_new_tokens": 30, "temperature": 0}


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("llama")


class Flaky(LogitsProcessor):
    """Fails once."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 1:
            raise ZeroDivisionError("a processor's bug")
        return scores


@pytest.mark.parametrize("fault", ["prompt", "processor"])
def test_a_next_turn_that_did_not_begin_leaves_its_cache(
    model: Any, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the cache of an earlier turn where the next one fails at its prompt or at its first token."""
    speculator = Speculator.from_transformers(model, method="none")
    turn = speculator.generate(prompts()[0], max_new_tokens=5, temperature=0)
    asked, kept = [*prompts()[0], *turn.ids, 9, 8, 7], turn.cache.get_seq_length()
    text = speculator.generate(asked, **GREEDY).ids
    processors = [Flaky()] if fault == "processor" else []
    with monkeypatch.context() as patched:
        if fault == "prompt":
            Full(model.model.layers[1].mlp, patched).full = lambda _: True
        with pytest.raises((ZeroDivisionError, OutOfMemoryError)):
            speculator.generate(asked, cache=turn.cache, logits_processor=processors, **GREEDY)
    assert {layer.keys.shape[-2] for layer in turn.cache.layers} == {kept}
    assert speculator.generate(asked, cache=turn.cache, **GREEDY).ids == text


def test_text_and_cache_agree_where_learning_fails(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards a next turn after Ctrl-C while a session learns: the round that was committed is in the text."""
    left = [5]

    def interrupted(session: EmptySession, *args: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    monkeypatch.setattr(EmptySession, "observe", interrupted)
    stream = Speculator.from_transformers(model, method="none").stream(prompts()[0], **GREEDY)
    pieces: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        pieces.extend(token for piece in stream for token in piece.tokens)
    ids = stream.result.ids
    assert len(ids) == 5
    assert ids == pieces
    assert stream.result.stats.tokens == len(ids)
    assert stream.result.cache.get_seq_length() == LENGTHS[0] + len(ids) - 1


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_text_without_room_for_drafts_is_decoded_plainly(model: Any, rounds: int) -> None:
    """Guards a full device: a draft model's passes that do not fit cost neither the text nor further attempts."""
    text = Speculator.from_transformers(model, method="none").generate(prompts()[0], **GREEDY).ids
    speculator = Speculator.from_transformers(model, method="draft-model", draft_model=model, nodes=1)
    usual, left = speculator.drafter._open_cache, [rounds]

    def full(cache: Any, name: str) -> Any:
        own = getattr(cache, name)

        def run(*given: Any, **options: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                raise OutOfMemoryError("no room")
            return own(*given, **options)

        return run

    def opened(prompt: Any) -> Any:
        cache = usual(prompt)
        cache.prefill, cache.forward = full(cache, "prefill"), full(cache, "forward")
        return cache

    speculator.drafter._open_cache = opened
    found = speculator.generate(prompts()[0], **GREEDY)
    assert found.ids == text
    notes = [note for note in found.stats.notes if "no room" in note]
    assert notes == ["decoded on without drafts, since a drafting pass had no room: no room"]
    assert left == [0]


def test_the_draft_model_reads_what_came_before_the_first_draft(model: Any) -> None:
    """Guards prompts that draft models read late: the tokens committed meanwhile follow them."""
    speculator = Speculator.from_transformers(model, method="draft-model", draft_model=model, nodes=4)
    propose, left = speculator.drafter.propose, [3]

    def late(sessions: Any, budgets: Any) -> Any:
        left[0] -= 1
        return propose(sessions, budgets) if left[0] < 0 else [DraftTree.empty() for _ in sessions]

    speculator.drafter.propose = late
    found = speculator.generate(prompts()[0], **GREEDY)
    assert found.ids == Speculator.from_transformers(model, method="none").generate(prompts()[0], **GREEDY).ids
    assert found.stats.accepted == found.stats.drafted > 0  # the same model drafts


def test_a_stream_is_decoded_once(model: Any) -> None:
    """Guards a stream that is iterated again after it was left: it says so instead of going wrong."""
    stream = Speculator.from_transformers(model, method="none").stream(prompts()[0], **GREEDY)
    next(iter(stream))
    with pytest.raises(UsageError, match="already been decoded"):
        list(stream)


def test_the_time_of_sizing_is_time_of_drafts(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards small models, beside whose passes it counts: choosing a size, and learning from the round before."""
    now, seen, nodes = [0.0], list[float](), FixedSizing.nodes

    def choosing(*given: Any) -> list[int]:
        now[0] += 0.5
        return nodes(*given)

    def learning(*_: Any, target_seconds: float, draft_seconds: float) -> None:
        seen.append(draft_seconds)
        now[0] += 0.25

    speculator = Speculator.from_transformers(model, method="lookup", nodes=3)
    monkeypatch.setattr(decoder, "time", SimpleNamespace(thread_time=lambda: now[0], perf_counter=time.perf_counter))
    monkeypatch.setattr(FixedSizing, "nodes", choosing)
    monkeypatch.setattr(FixedSizing, "observe", learning)
    stats = speculator.generate(prompts()[0], **GREEDY).stats
    assert seen == [0.5] + [0.75] * (stats.rounds - 1)


def test_sizes_follow_whole_passes(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards early exits, whose layers are time of the pass though drafting ran them, and the time of committing."""
    forward, keep = HFEngine.forward, HFTargetCache.keep
    now, seen = [0.0], list[tuple[float, float]]()

    def early(*given: Any) -> list[Pass]:
        now[0] += 1.0
        return [replace(each, early=0.5) for each in forward(*given)]

    def keeping(cache: HFTargetCache, rows: Sequence[int]) -> None:
        now[0] += 0.25
        keep(cache, rows)

    def observed(*_: Any, target_seconds: float, draft_seconds: float) -> None:
        seen.append((target_seconds, draft_seconds))

    speculator = Speculator.from_transformers(model, method="lookup")
    clock = SimpleNamespace(thread_time=lambda: now[0], perf_counter=time.perf_counter)
    monkeypatch.setattr(decoder, "time", clock)
    monkeypatch.setattr(HFEngine, "forward", early)
    monkeypatch.setattr(HFTargetCache, "keep", keeping)
    monkeypatch.setattr(AdaptiveSizing, "observe", observed)
    stats = speculator.generate(prompts()[0], **GREEDY).stats
    assert seen == [(2.25, 0.0)] * stats.rounds
    assert stats.target_seconds == 1.25 * stats.rounds
