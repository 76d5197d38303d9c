"""A first start: further processes compile beside this one, and later starts need none."""

from __future__ import annotations

import importlib
import subprocess
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import pytest

from speculant.api.first_start import compiled_beside, late_warm_ups
from speculant.options.drafting import DraftingOptions


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Four threads and an empty cache; returns the processes started since."""
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 4)
    set_misses(monkeypatch, 1)
    found, start = list[subprocess.Popen[bytes]](), subprocess.Popen

    def watched(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        found.append(start(*args, **options))
        return found[-1]

    monkeypatch.setattr(subprocess, "Popen", watched)
    return found


def set_misses(monkeypatch: pytest.MonkeyPatch, misses: int) -> None:
    class Kernel:
        stats = SimpleNamespace(cache_misses=Counter[str]())

        def __call__(self, *args: Any) -> float:
            self.stats.cache_misses["signature"] = misses  # misses are counted once for each signature
            return 0.0

    monkeypatch.setattr("speculant.sizing.division.limit_growth", Kernel())


def write_job(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    (folder / "own_job.py").write_text(f"import pathlib, time\ndef run():\n    {body}\n")
    monkeypatch.syspath_prepend(str(folder))


def test_functions_run_beside_the_body(
    started: list[subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the gain: a process that finds the same modules runs the function while the body runs."""
    write_job(tmp_path, monkeypatch, f"pathlib.Path({str(tmp_path / 'done')!r}).touch()")
    until = time.monotonic() + 60
    with compiled_beside("own_job:run"):
        while not (tmp_path / "done").exists() and time.monotonic() < until:
            time.sleep(0.02)
    assert (tmp_path / "done").exists()
    assert len(started) == 1


def test_processes_end_before_their_next_kernel(
    started: list[subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards users' machines: nothing compiles on for long when the body has ended, even by an error."""
    compiling = "from numba import njit\n    while True: njit(lambda: 1)()"
    write_job(tmp_path, monkeypatch, compiling)
    with pytest.raises(ValueError, match="the body"), compiled_beside("own_job:run"):
        raise ValueError("the body")
    assert started[0].wait(60) == 0


def test_a_process_that_cannot_be_started_is_not_missed(
    started: list[subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards limits on processes: the body runs as if there were nothing beside it."""

    def refuse(*args: Any, **options: Any) -> None:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    ran = False
    with compiled_beside("own_job:run"):
        ran = True
    assert ran


def test_only_the_first_start_of_a_process_compiles_beside(
    started: list[subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards notebooks that open several models: the second finds compiled kernels in this process."""
    write_job(tmp_path, monkeypatch, "pass")
    for _ in range(3):
        with compiled_beside("own_job:run"):
            pass
    assert len(started) == 1


def test_one_process_does_the_work_of_several(
    started: list[subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards machines with two processors: no more processes than further threads."""
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 2)
    write_job(tmp_path, monkeypatch, "pass")
    with compiled_beside("own_job:run", "own_job:run"):
        pass
    assert len(started) == 1


@pytest.mark.parametrize("what", ["cached", "one thread", "no interpreter", "nothing to do"])
def test_no_process_without_need(
    what: str, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards later starts, limits of threads, and programs with an interpreter inside, which must not start again."""
    if what == "cached":
        set_misses(monkeypatch, 0)
    elif what == "one thread":
        monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 1)
    elif what == "no interpreter":
        monkeypatch.setattr("sys.executable", "/opt/program")
    with compiled_beside(*(() if what == "nothing to do" else ("own_job:run",))):
        pass
    assert not started


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        ({}, 2),
        ({"method": "mix", "nodes": "auto"}, 2),
        ({"method": "aded"}, 1),
        ({"nodes": 8}, 0),
        ({"method": "none"}, 0),
    ],
)
def test_only_what_is_needed_is_compiled(asked: dict[str, Any], count: int) -> None:
    """Guards the names of the functions, which other processes import, and their choice by options."""
    named = late_warm_ups(DraftingOptions(**asked))
    assert len(named) == count
    for module, name in (each.split(":") for each in named):
        assert callable(getattr(importlib.import_module(module), name))
