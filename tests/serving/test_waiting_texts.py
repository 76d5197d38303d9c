"""The queue of a model: who leaves it first."""

from __future__ import annotations

from collections import Counter
from unittest.mock import Mock

from speculant.serving.exchange import Job, Ticket
from speculant.serving.waiting_texts import WaitingTexts


def tickets(jobs: list[tuple[str, str, int]]) -> list[Ticket]:
    """Return tickets of jobs (name, tenant, priority)."""
    given = [Job(prompt=[1], tenant=tenant, priority=priority, stop=(name,)) for name, tenant, priority in jobs]
    return [Ticket(job, 0, Mock(), seconds=60) for job in given]


def order(jobs: list[tuple[str, str, int]], *, size: int = 1) -> list[str]:
    """Return the names of jobs, in order of arrival, in the order in which they leave the queue.

    Args:
        jobs: name, tenant and priority of each.
        size: number of texts decoded together, of which the oldest ends whenever another may begin.
    """
    waiting, decoded, names = WaitingTexts(), list[str](), list[str]()
    for ticket in tickets(jobs):
        waiting.add(ticket)
    while waiting:
        decoded = decoded[max(0, len(decoded) - size + 1) :]
        job = waiting.take(Counter(decoded)).job
        decoded.append(job.tenant)
        names.append(job.stop[0])
    return names


def test_lower_priorities_go_first() -> None:
    """Guards the order within a key, and that of arrival among equals."""
    jobs = [("a", "", 0), ("b", "", 2), ("c", "", -1), ("d", "", 0), ("e", "", -1)]
    assert order(jobs) == ["c", "e", "a", "d", "b"]


def test_a_key_with_many_texts_delays_others_by_one() -> None:
    """Guards fairness: the single text of a key is not behind all those of another."""
    jobs = [(f"a{number}", "a", 0) for number in range(20)] + [("b", "b", 0)]
    assert order(jobs).index("b") == 1


def test_the_key_with_the_fewest_texts_is_next() -> None:
    """Guards fair shares of the places: three keys that always wait get as many each, in turns."""
    jobs = [(f"{tenant}{number}", tenant, 0) for tenant in "abc" for number in range(4)]
    assert order(jobs, size=3) == [f"{tenant}{number}" for number in range(4) for tenant in "abc"]


def test_a_key_that_comes_back_is_not_behind_a_flood() -> None:
    """Guards turns among equals: two keys share one place equally, though one of them never has two texts waiting."""
    waiting, names = WaitingTexts(), list[str]()
    for ticket in tickets([(f"a{number}", "a", 0) for number in range(6)]):
        waiting.add(ticket)
    for number in range(3):
        names.append(waiting.take({}).job.tenant)
        waiting.add(tickets([(f"b{number}", "b", 0)])[0])
        names.append(waiting.take({}).job.tenant)
    assert "".join(names) == "ababab"


def test_a_key_that_holds_places_waits() -> None:
    """Guards the counts of texts being decoded: the key with fewer is next, whoever came first or had the last turn."""
    waiting = WaitingTexts()
    for ticket in tickets([("a", "a", 0), ("b", "b", 0), ("c", "c", 0)]):
        waiting.add(ticket)
    assert [waiting.take({"a": 2, "b": 1, "c": 0}).job.tenant for _ in range(3)] == ["c", "b", "a"]


def test_priority_does_not_pass_another_key() -> None:
    """Guards that priorities count among the texts of one key only."""
    jobs = [("a1", "a", 5), ("b1", "b", -9), ("b2", "b", -9), ("a2", "a", 0)]
    assert order(jobs) == ["a2", "b1", "a1", "b2"]


def test_discarded_texts_leave_no_trace() -> None:
    """Guards cancelled texts: none is returned, and none is discarded twice."""
    waiting, (first, second) = WaitingTexts(), tickets([("a", "a", 0), ("b", "b", 0)])
    waiting.add(first)
    waiting.add(second)
    waiting.discard(first)
    waiting.discard(first)
    assert (len(waiting), [*waiting], waiting.take({})) == (1, [second], second)
    assert not waiting
