"""The memory file of a drafter inside an engine."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from memories import drafted, drafter, learn, saved
from saving_worker import work
from speculant.core.errors import FileError, ForeignMemoryError
from speculant.integrations.kept_memory import BackgroundSaver, load_memory

TEXT = (1, 2, 3, 4, 5, 6, 7, 8)


def test_memory_before_corpus(tmp_path: Path) -> None:
    """The corpus is what a drafter begins with until it has a memory of its own."""
    corpus, memory = saved(tmp_path / "base", "aded", TEXT), tmp_path / "memory"
    held = drafter("aded")
    assert load_memory(held, memory=memory, corpus=corpus)
    held.save(memory)  # type: ignore[attr-defined]
    corpus.unlink()
    assert load_memory(drafter("aded"), memory=memory, corpus=corpus)
    assert drafted(memory, "aded", (1, 2))[:2] == [3, 4]


def test_a_memory_that_cannot_be_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged and left as it is; a corpus that cannot be used is an error, since it was asked for."""
    path = tmp_path / "memory"
    path.write_bytes(b"something else")
    assert not load_memory(drafter("aded"), memory=path, corpus=None)
    assert path.read_bytes() == b"something else"
    assert "not a Speculant memory file" in caplog.text
    with pytest.raises(FileError):
        load_memory(drafter("aded"), memory=None, corpus=tmp_path / "missing")
    with pytest.raises(ForeignMemoryError):
        load_memory(drafter("aded"), memory=None, corpus=saved(tmp_path / "other", "suffix", TEXT))


def test_methods_without_memory() -> None:
    """Nothing is loaded or saved."""
    assert not load_memory(drafter("lookup"), memory=None, corpus=None)


def test_methods_that_only_start_from_a_file(tmp_path: Path) -> None:
    """ADED as published begins with a corpus, and nothing is saved."""
    held, path = drafter("aded-paper"), saved(tmp_path / "base", "aded", TEXT)
    empty = held.memory_bytes  # type: ignore[attr-defined]
    assert not load_memory(held, memory=None, corpus=path)
    assert held.memory_bytes > empty  # type: ignore[attr-defined]
    with pytest.raises(FileError):
        load_memory(held, memory=None, corpus=tmp_path / "missing")


def test_saving(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Only what is new is saved; a failure is logged once until it works again."""
    held, count = drafter("aded"), [0]
    path = tmp_path / "folder" / "memory"
    saver = BackgroundSaver(held, path, every=1e6, learned=lambda: count[0])  # type: ignore[arg-type]
    try:
        saver.save()
        assert not path.exists()
        learn(held, TEXT)
        count[0] = 8
        saver.save()
        assert drafted(path, "aded", (1, 2))[:2] == [3, 4]
        path.unlink()
        path.mkdir()
        for count[0] in (9, 10):
            saver.save()
        assert len(caplog.records) == 1
        path.rmdir()
    finally:
        saver.close()
    assert path.is_file()


def test_saving_in_the_background(tmp_path: Path) -> None:
    """The thread saves by itself and ends when it is closed."""
    held = drafter("aded")
    learn(held, TEXT)
    counts = iter(range(10**6))
    saver = BackgroundSaver(held, tmp_path / "memory", every=0.001, learned=lambda: next(counts))  # type: ignore[arg-type]
    try:
        for _ in range(10**5):
            if (tmp_path / "memory").exists():
                break
            saver._thread.join(0.001)
    finally:
        saver.close()
    saver._thread.join()
    assert drafted(tmp_path / "memory", "aded", (1, 2))[:2] == [3, 4]


@pytest.mark.parametrize("terminated", [False, True])
def test_saved_when_a_worker_ends(tmp_path: Path, terminated: bool) -> None:
    """Processes of multiprocessing end without `atexit`; what they learned is saved all the same."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    worker = context.Process(target=work, args=(tmp_path / "memory", TEXT, ready, terminated))
    worker.start()
    assert ready.wait(120)
    if terminated:
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGTERM)
    worker.join(120)
    assert worker.exitcode == 0
    assert drafted(tmp_path / "memory", "aded", (1, 2))[:2] == [3, 4]
