"""Turns of the systems of `serving.py`, of which only one runs at a time: one after the other, or in short turns.

The speed of a shared machine changes within seconds, and so may differ between systems that are measured one after the
other. In turns of about a second both sides of a ratio meet the same speed. A turn lasts for some seconds of the
system's own CPU time, so that a system that waits for its clients is not charged for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from serving_load import Answer, figures
from serving_systems import HttpServer, Library

_POLL = 0.01  # seconds between two looks at a system's CPU time
# Relative lengths from 0.5 to 1.5, spread by the golden ratio. Equal texts would begin and end in the same rounds; so
# would plain texts of a few lengths, whose successors' prompts then share passes, which drafted texts never do.
LENGTHS = tuple(round(0.5 + 0.618034 * place % 1, 3) for place in range(89))
System = HttpServer | Library
Cell = dict[str, Any]


def turns(
    systems: Sequence[System], prompts: Sequence[str], *, clients: int, tokens: int, seconds: float | None
) -> list[tuple[Cell, list[Answer]]]:
    """Return the figures and answers of each system: one after the other, or in turns of some seconds of CPU time."""
    if seconds is None:
        return [turn(system, prompts, clients=clients, tokens=tokens) for system in systems]
    before = [Before.of(system) for system in systems]
    found = in_turns(systems, lambda system: asked_of(system, prompts, clients=clients, tokens=tokens), seconds=seconds)
    return [(each.cell(system, answers), answers) for system, each, answers in zip(systems, before, found, strict=True)]


def turn(system: System, prompts: Sequence[str], *, clients: int, tokens: int) -> tuple[Cell, list[Answer]]:
    """Return the figures and answers of one system while the others are suspended."""
    before = Before.of(system)
    system.resume()
    answers = asked_of(system, prompts, clients=clients, tokens=tokens)
    system.pause()
    return before.cell(system, answers), answers


def asked_of(system: System, prompts: Sequence[str], *, clients: int, tokens: int) -> list[Answer]:
    lengths = [round(tokens * LENGTHS[place % len(LENGTHS)]) for place in range(len(prompts))]
    return system.answer([*zip(prompts, lengths, strict=True)], clients=clients)


@dataclass(frozen=True, slots=True)
class Before:
    """The counts and times of a suspended system before it answers, and the time of the clients' process."""

    counters: dict[str, int]
    cpu: float
    clients: float
    began: float

    @classmethod
    def of(cls, system: System) -> Before:
        return cls(counters_of(system), system.cpu_seconds, time.process_time(), time.perf_counter())

    def cell(self, system: System, answers: Sequence[Answer]) -> Cell:
        """Return the figures of answers, once the system is suspended again."""
        share = (time.process_time() - self.clients) / (time.perf_counter() - self.began)
        spent, after = system.cpu_seconds - self.cpu, counters_of(system)
        cell: Cell = {"requests": len(answers)} | figures(answers)
        return cell | {
            "cpu_seconds": round(spent, 3),
            "tokens_per_cpu_second": round(cell["tokens"] / spent, 3),
            "client_cpu_share": round(share, 4),
            "drafting": {name: value - self.counters[name] for name, value in after.items()},
        }


def counters_of(system: System) -> dict[str, int]:
    system.resume()
    counters = system.counters()
    system.pause()
    return counters


def in_turns(
    systems: Sequence[System], answer: Callable[[System], list[Answer]], *, seconds: float
) -> list[list[Answer]]:
    """Return what `answer` returns for each system, all of which run in turns.

    Args:
        systems: suspended systems, which are left suspended.
        answer: called in a thread for each system.
        seconds: CPU time of a turn.
    """
    with ThreadPoolExecutor(len(systems)) as pool:
        found = [pool.submit(answer, system) for system in systems]
        while not all(each.done() for each in found):
            for system, each in zip(systems, found, strict=True):
                _run(system, each, seconds)
        return [each.result() for each in found]


def _run(system: System, answers: Future[list[Answer]], seconds: float) -> None:
    if answers.done():
        return
    began = system.cpu_seconds
    system.resume()
    while not answers.done() and system.cpu_seconds - began < seconds:
        time.sleep(_POLL)
    system.pause()
