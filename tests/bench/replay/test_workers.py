"""Replays in several processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from multiprocessing import active_children
from typing import Any

import pytest

from scripted import recording
from speculant.bench.replay.runs import Run
from speculant.bench.replay.workers import replay_runs
from speculant.core.errors import SpeculantError, UnsupportedError


def runs(*methods: str, vocabulary: int = 9, length: int = 8) -> list[Run]:
    settings: dict[str, Any] = {"nodes": 8, "keep_memory": True, "memory_limit": 1 << 20, "corpus": None}
    recordings = [recording([4, 5, 6] * length, prompt=[4, 5])]
    return [
        Run(file="f", method=method, recordings=recordings * (i + 1), vocabulary=vocabulary, **settings)
        for i, method in enumerate(methods)
    ]


def test_several_processes_give_the_results_of_one() -> None:
    """Results are in the order of the runs, whichever ends first, and every token is reported."""
    reported: list[int] = []
    listed = runs("aded", "none", "none")
    result = replay_runs(listed, jobs=2, advance=reported.append)
    alone = replay_runs(listed, jobs=1)
    assert [each.accepted.tolist() for each in result] == [each.accepted.tolist() for each in alone]
    assert sum(reported) == sum(run.tokens for run in listed)
    assert active_children() == []


def test_an_error_is_raised_in_the_parent() -> None:
    """An error of a process keeps its type and message."""
    with pytest.raises(UnsupportedError, match="token ids below"):
        replay_runs(runs("aded", "aded", vocabulary=2**30), jobs=2)
    assert active_children() == []


def test_a_bug_keeps_its_traceback() -> None:
    """An unexpected exception shows where it was raised."""
    broken = [replace(run, nodes="many") for run in runs("aded", "aded")]  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"(?s)in a process that replays:.*ValueError"):
        replay_runs(broken, jobs=2)
    assert active_children() == []


def test_a_killed_process_is_named() -> None:
    """The system kills processes when memory runs out; the parent must not wait for them."""

    def end() -> None:
        while not (children := active_children()):
            time.sleep(0.01)
        os.kill(children[0].pid, signal.SIGKILL)  # type: ignore[arg-type]

    threading.Thread(target=end).start()
    with pytest.raises(SpeculantError, match="was killed"):
        replay_runs(runs("aded", "aded", length=20_000), jobs=2)
    assert active_children() == []
