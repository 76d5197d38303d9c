"""Playing in several processes."""

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
from speculant.bench.replay.workers import play_runs
from speculant.core.errors import SpeculantError, UnsupportedError


def runs(*methods: str, vocabulary: int = 9, length: int = 8) -> list[Run]:
    settings: dict[str, Any] = {"nodes": 8, "keep_memory": True, "memory_limit": 1 << 20, "corpus": None}
    recordings = [recording([4, 5, 6] * length, prompt=[4, 5])]
    return [
        Run(file="f", method=method, recordings=recordings * (i + 1), vocabulary=vocabulary, **settings)
        for i, method in enumerate(methods)
    ]


def test_processes_play_what_one_plays() -> None:
    """Results come in the order of the runs, whichever ends first, and every token is reported."""
    told: list[int] = []
    listed = runs("aded", "none", "none")
    played = play_runs(listed, jobs=2, advance=told.append)
    alone = play_runs(listed, jobs=1)
    assert [each.accepted.tolist() for each in played] == [each.accepted.tolist() for each in alone]
    assert sum(told) == sum(run.tokens for run in listed)
    assert active_children() == []


def test_an_error_comes_through() -> None:
    """A fault that names its way out is not hidden in a process."""
    with pytest.raises(UnsupportedError, match="token ids below"):
        play_runs(runs("aded", "aded", vocabulary=2**30), jobs=2)
    assert active_children() == []


def test_a_bug_keeps_its_traceback() -> None:
    """What nobody expected says where it happened."""
    broken = [replace(run, nodes="many") for run in runs("aded", "aded")]  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"(?s)in a process that replays:.*TypeError"):
        play_runs(broken, jobs=2)
    assert active_children() == []


def test_a_process_that_is_ended_is_named() -> None:
    """The system ends processes when memory runs out; waiting for them would be for ever."""

    def end() -> None:
        while not (children := active_children()):
            time.sleep(0.01)
        os.kill(children[0].pid, signal.SIGKILL)  # type: ignore[arg-type]

    threading.Thread(target=end).start()
    with pytest.raises(SpeculantError, match="ended from outside"):
        play_runs(runs("aded", "aded", length=20_000), jobs=2)
    assert active_children() == []
