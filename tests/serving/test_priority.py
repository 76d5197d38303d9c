"""Places in the queue, when its texts are taken, and `priority` in the protocols."""

from __future__ import annotations

import threading
from unittest.mock import Mock

import pytest

from servers import Connect, completion
from speculant import Speculator
from speculant.serving.engine_loop import EngineLoop
from speculant.serving.exchange import Job, Ticket

pytestmark = pytest.mark.anyio


def test_waiting_texts_are_taken_fairly(speculator: Speculator) -> None:
    """Guards that the loop tells the queue whose texts are decoded."""
    loop, batch = EngineLoop(speculator, size=3, queue=9, seconds=60, buffer_tokens=99, observer=Mock()), Mock()
    batch.add.side_effect = lambda *_, **options: Mock(tenant=options["tenant"])
    for tenant in "aaab":
        loop._waiting.add(Ticket(Job(prompt=[1], tenant=tenant), 0, Mock(), seconds=60))
    loop._admit(batch)
    assert [call.kwargs["tenant"] for call in batch.add.call_args_list] == ["a", "b", "a"]


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
    loop, batch = EngineLoop(speculator, size=size, queue=9, seconds=60, buffer_tokens=99, observer=Mock()), Mock()
    loop._prompt_tokens, batch.stats.prefill_seconds = 10, 600.0
    monkeypatch.setattr("speculant.serving.engine_loop._MAX_GATHER", 0.2)
    with loop.open(2) as exchange:
        exchange.submit(Job(prompt=[1]))
        later = threading.Timer(0.02, exchange.submit, [Job(prompt=[2])])
        later.start()
        loop._listen(batch)
        assert len(loop._waiting) == found
        later.join()


def test_texts_wait_for_others_in_proportion_to_their_prompts(speculator: Speculator) -> None:
    """Guards fast models, and servers that have read no prompt yet: a text waits for a share of its prompt's time."""
    loop, batch = EngineLoop(speculator, size=4, queue=9, seconds=60, buffer_tokens=99, observer=Mock()), Mock()
    batch.stats.prefill_seconds = 3.0
    ticket = Ticket(Job(prompt=[1] * 20), 0, Mock(), seconds=60)
    assert loop._prompt_seconds(batch, ticket) == 0
    batch.add.side_effect = lambda *_, **__: Mock()
    loop._waiting.add(Ticket(Job(prompt=[1] * 300), 0, Mock(), seconds=60))
    loop._admit(batch)
    assert loop._prompt_seconds(batch, ticket) == pytest.approx(0.2)
