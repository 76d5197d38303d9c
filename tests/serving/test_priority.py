"""Places in the queue, when its texts are taken, and `priority` in the protocols."""

from __future__ import annotations

import threading
from unittest.mock import Mock

import pytest

from servers import Connect, completion
from speculant import Speculator
from speculant.serving.engine_loop import EngineLoop
from speculant.serving.errors import ApiError
from speculant.serving.exchange import Job

pytestmark = pytest.mark.anyio


def test_no_key_takes_the_whole_queue(speculator: Speculator) -> None:
    """Guards the place that is kept for each key that has asked: it is refused neither by others nor for long."""
    loop = EngineLoop(speculator, size=1, queue=4, seconds=60, buffer_tokens=99, observer=Mock())
    with loop.open(1, tenant="quiet"):
        pass
    with loop.open(4, tenant="busy"):
        with pytest.raises(ApiError, match="at most 4 texts") as refusal:
            loop.open(1, tenant="busy")
        assert refusal.value.status == 429
        with loop.open(1, tenant="quiet"), pytest.raises(ApiError, match="at most 5 texts"):
            loop.open(1, tenant="new")


async def test_priorities_are_taken_by_requests(connect: Connect) -> None:
    """Guards the field in the protocols that have it, and its range."""
    async with connect() as client:
        for path, body in (
            ("/v1/completions", completion(max_tokens=2)),
            ("/v1/responses", {"input": "Once", "max_output_tokens": 2}),
        ):
            assert (await client.post(path, json=body | {"priority": -5})).status_code == 200
            assert (await client.post(path, json=body | {"priority": 1 << 63})).status_code == 400


@pytest.mark.parametrize(("size", "found"), [(4, 2), (1, 1)])
def test_the_first_text_waits_a_moment_for_others(
    speculator: Speculator, size: int, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards bursts: prompts sent together share a pass, without a wait where no further text has a place."""
    loop = EngineLoop(speculator, size=size, queue=9, seconds=60, buffer_tokens=99, observer=Mock())
    monkeypatch.setattr(loop, "_prompt_seconds", lambda *_: 60.0)
    monkeypatch.setattr("speculant.serving.engine_loop._MAX_GATHER", 0.2)
    with loop.open(2) as exchange:
        exchange.submit(Job(prompt=[1]))
        later = threading.Timer(0.02, exchange.submit, [Job(prompt=[2])])
        later.start()
        loop._listen(Mock())
        assert len(loop._waiting) == found
        later.join()
