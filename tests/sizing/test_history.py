"""The histories of pauses: repeated prompts are told from new ones, and both begin where their own kind ended."""

from __future__ import annotations

import numpy as np
import pytest

from speculant.core.drafter import SessionRequest
from speculant.sizing import history as module
from speculant.sizing.history import PausingHistory, RecentPauses
from speculant.sizing.pausing import Pausing


def start(*prompt: int, tenant: str = "") -> SessionRequest:
    """Return the inputs of a session."""
    return SessionRequest(prompt=np.array(prompt, np.int32), tenant=tenant)


def lose(pausing: Pausing) -> None:
    """Let a request end in a long pause."""
    pausing.pause, pausing.left, pausing.balance, pausing.debts = 64, 500, -3.0, 7


def test_a_repeated_prompt_does_not_wait_for_what_new_ones_lost() -> None:
    """Guards known texts in large batches: drafts lose on new prompts there, and gain on repeated ones."""
    history = PausingHistory()
    lose(history.of(start(1, 2)).begin())
    assert history.of(start(3, 4)).begin().left > 0
    assert history.of(None).begin().left > 0
    assert history.of(start(1, 2)).begin().left == 0


def test_repeated_prompts_that_lose_pause_too() -> None:
    """Guards sampled answers: a prompt may come again and its text not."""
    history = PausingHistory()
    history.of(start(1))
    lose(history.of(start(1)).begin())
    assert history.of(start(1)).begin().left > 0
    assert history.of(start(2)).begin().left == 0


def test_tenants_have_prompts_of_their_own() -> None:
    """Guards privacy: whether another tenant gave a prompt does not change how a text is decoded."""
    history = PausingHistory()
    new = history.of(start(1, tenant="a"))
    assert history.of(start(1, tenant="b")) is new
    assert history.of(start(1, tenant="a")) is not new


def test_the_oldest_prompts_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards memory: the number of prompts is bounded, and one that comes again stays."""
    monkeypatch.setattr(module, "_PROMPTS", 2)
    history = PausingHistory()
    new = history.of(start(1))
    history.of(start(2))
    assert history.of(start(1)) is not new
    history.of(start(3))
    assert history.of(start(1)) is not new
    assert history.of(start(2)) is new


def test_a_batch_begins_with_the_credit_of_one_request() -> None:
    """Guards large batches on new prompts: each request could lose as much as a stream before it pauses."""
    assert PausingHistory(64).of(start(1)).begin().balance < 1
    assert PausingHistory().of(start(1)).begin().balance == 8


def test_the_requests_of_a_batch_are_averaged() -> None:
    """Guards batches: neither the last request nor the one that paused longest decides for the next ones."""
    recent = RecentPauses(Pausing.begun(4), 4)
    for balance in (12.0, 8.0, 8.0, -12.0):
        recent.begin(4).balance = balance
    assert recent.begin(4).balance == 4


def test_as_many_requests_count_as_run_together() -> None:
    """Guards a single client of a large batch: its last request counts, not the mean of dozens before."""
    recent = RecentPauses(Pausing.begun(64), 64)
    for _ in range(20):
        lose(recent.begin(1))
    assert recent.begin(1).left == 500
    for _ in range(20):
        recent.begin(20).left = 0
    assert recent.begin(1).left == 0


def test_fewer_requests_count_step_by_step() -> None:
    """Guards the end of a burst: the next request does not begin like an arbitrary one of it."""
    recent = RecentPauses(Pausing.begun(8), 8)
    for balance in (-2.0, -2.0, -2.0, -2.0, -2.0, -2.0, -2.0, 12.0):
        begun = recent.begin(8)
        begun.balance, begun.left, begun.pause = balance, 400, 64
    assert recent.begin(1).left > 300
