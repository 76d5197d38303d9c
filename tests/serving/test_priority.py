"""`priority`: who leaves the queue first."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from servers import Connect, completion
from speculant import Speculator
from speculant.serving.engine_loop import EngineLoop
from speculant.serving.exchange import Job

pytestmark = pytest.mark.anyio


def order(speculator: Speculator, jobs: list[tuple[str, str, int]]) -> list[str]:
    """Return the names of jobs (name, tenant, priority) in the order in which the queue lets them go."""
    loop = EngineLoop(speculator, size=1, queue=20, seconds=60, buffer_tokens=99, observer=Mock())
    for name, tenant, priority in jobs:
        with loop.open(1, tenant=tenant) as exchange:
            exchange._submit = loop._queue
            exchange._cancel = lambda _: None
            exchange.submit(Job(prompt=[1], tenant=tenant, priority=priority, stop=(name,)))
    return [each.job.stop[0] for each in loop._waiting]


def test_lower_priorities_go_first(speculator: Speculator) -> None:
    """Guards the order within a key, and that of arrival among equals."""
    jobs = [("a", "", 0), ("b", "", 2), ("c", "", -1), ("d", "", 0), ("e", "", -1)]
    assert order(speculator, jobs) == ["c", "e", "a", "d", "b"]


def test_a_key_cannot_pass_another(speculator: Speculator) -> None:
    """Guards fairness: each key keeps the places at which its requests arrived, whatever their priorities."""
    jobs = [("a1", "a", 0), ("b1", "b", 5), ("a2", "a", -9), ("b2", "b", 0), ("a3", "a", -9)]
    assert order(speculator, jobs) == ["a2", "b2", "a3", "b1", "a1"]


async def test_priorities_are_taken_by_requests(connect: Connect) -> None:
    """Guards the field in the protocols that have it, and its range."""
    async with connect() as client:
        for path, body in (
            ("/v1/completions", completion(max_tokens=2)),
            ("/v1/responses", {"input": "Once", "max_output_tokens": 2}),
        ):
            assert (await client.post(path, json=body | {"priority": -5})).status_code == 200
            assert (await client.post(path, json=body | {"priority": 1 << 63})).status_code == 400
