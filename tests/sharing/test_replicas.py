"""Three replicas as processes and a real server, as a service would run them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("redis")

from redis_server import Server, needs_server, wait_for
from replica import VOCABULARY, Replica, decode, open_drafter

pytestmark = needs_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Start a server for a test."""
    found = Server(tmp_path)
    yield found
    found.kill()


def text(seed: int) -> np.ndarray:
    """Return 150 random tokens, the first 50 of them a prompt."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, 150).astype(np.int32)


def test_three_replicas(server: Server) -> None:
    """A replica that never saw a text drafts it within a second; a crash of the server costs drafts only.

    Tokens that are not the recorded ones would end the replica, so every answer is a check of the text.
    """
    with ExitStack() as stack:
        replicas = [stack.enter_context(closing(Replica(server.url))) for _ in range(3)]
        first, second, third = (replica.ready() for replica in replicas)
        lags = []
        for seed in range(3):
            known = second.report()["learned"]
            assert first.decode(text(seed)[:50], text(seed)[50:])["accepted"] < 10
            began = time.monotonic()
            wait_for(lambda known=known: second.report()["learned"] >= known + 150)
            lags.append(time.monotonic() - began)
            assert second.decode(text(seed)[:50], text(seed)[50:])["accepted"] > 80
        assert min(lags) < 1.0
        wait_for(lambda: third.report()["learned"] >= 6 * 150)
        server.kill()
        assert first.decode(text(7)[:50], text(7)[50:])["accepted"] < 10
        assert third.decode(text(0)[:50], text(0)[50:])["accepted"] > 80
        server.start()
        wait_for(lambda: second.report()["learned"] >= 3 * 150 + 150)
        wait_for(lambda: second.decode(text(7)[:50], text(7)[50:])["accepted"] > 80)


def test_tenants_and_tokenizers_do_not_meet(server: Server) -> None:
    """What one tenant decodes is not drafted for another, nor for a model with another vocabulary."""
    with ExitStack() as stack:
        urls = (f"{server.url}?tenant=a", "t"), (f"{server.url}?tenant=b", "t"), (f"{server.url}?tenant=a", "u")
        first, *others = (stack.enter_context(closing(open_drafter(*each))) for each in urls)
        decode(first, text(1)[:50], text(1)[50:])
        wait_for(lambda: first.channel.counts.messages)
        for other in others:
            assert decode(other, text(1)[:50], text(1)[50:]) < 10
            assert other.channel.counts.received == 0
