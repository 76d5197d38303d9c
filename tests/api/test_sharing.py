"""Speculators that share: the text is the model's own, whatever becomes of the server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("redis")

from channels import LocalChannel
from models import tiny_model
from redis_server import Server, needs_server, wait_for
from speculant import Speculator
from speculant.core.errors import UnsupportedError, UsageError
from speculant.sharing.drafter import SharingDrafter

PROMPT = [5, 9, 14, 3, 8]
LENGTH = 24


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Start a server for a test."""
    found = Server(tmp_path)
    yield found
    found.kill()


def plain(model: torch.nn.Module) -> list[int]:
    """Return the text of transformers' own `generate`."""
    ids = torch.tensor([PROMPT])
    found: list[int] = model.generate(ids, max_new_tokens=LENGTH, do_sample=False)[0, len(PROMPT) :].tolist()
    return found


@needs_server
def test_the_server_may_die_at_any_time(server: Server) -> None:
    """Guards text: identical before, during and after an outage, and sharing goes on when the server is back."""
    model = tiny_model("llama")
    first, second = (Speculator.from_transformers(model, share=server.url, nodes=4) for _ in range(2))
    options = {"max_new_tokens": LENGTH, "temperature": 0}
    expected = plain(model)
    assert first.generate(PROMPT, **options).ids == expected
    learned = len(PROMPT) + LENGTH
    assert isinstance(second.drafter, SharingDrafter)
    drafter = second.drafter
    wait_for(lambda: drafter.learned == learned)
    stream = second.stream(PROMPT, **options)
    for place, _ in enumerate(stream):
        if not place:
            server.kill()
    assert stream.result.ids == expected
    assert stream.result.stats.accepted > 0
    assert [result.ids for result in second.generate_batch([PROMPT] * 3, **options)] == [expected] * 3
    server.start()
    first.generate(PROMPT, **options)
    wait_for(lambda: drafter.learned == 2 * learned)
    for speculator in (first, second):
        speculator.close()
        assert speculator.generate(PROMPT, **options).ids == expected


def test_any_channel_can_be_shared_by(tmp_path: Path) -> None:
    """Guards other stores: a channel of the user's own is taken, and memories are saved as ever."""
    model, channel = tiny_model("llama"), LocalChannel()
    speculator = Speculator.from_transformers(model, share=channel)
    speculator.generate(PROMPT, max_new_tokens=LENGTH, temperature=0)
    assert sum(len(piece.tokens) for piece in channel.published) == len(PROMPT) + LENGTH
    speculator.save(tmp_path / "memory")
    speculator.close()
    assert channel.closed
    Speculator.from_transformers(model, memory=tmp_path / "memory")


def test_what_cannot_be_shared_is_refused() -> None:
    """Guards users: methods that learn from more than text, and URLs that name no store."""
    with pytest.raises(UnsupportedError, match="'lookup' has no memory"):
        Speculator.from_transformers(tiny_model("llama"), method="lookup", share=LocalChannel())
    with pytest.raises(UsageError, match="sharing URL"):
        Speculator.from_transformers(tiny_model("llama"), share="localhost:6379")
