"""What writers that were killed left behind is removed, and never what a live one is writing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from speculant.cli.main import main
from speculant.memory.aside import PRIVATE, SHARED, remove_stale, write_aside
from speculant.memory.file import write_memory

WRITER = """
import sys
from pathlib import Path
from speculant.memory.aside import PRIVATE, SHARED, write_aside

with write_aside(Path(sys.argv[1])) as file:
    file.write(b"new")
    file.flush()
    print("writing", flush=True)
    sys.stdin.read()
"""


@contextmanager
def writer(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that is in the middle of writing, and goes on when its input ends."""
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "writing\n"
        yield child
        child.kill()


def beside(path: Path) -> list[str]:
    """Return the names of the other files in the folder."""
    return sorted(set(os.listdir(path.parent)) - {path.name})


def save(path: Path) -> None:
    """Save a memory."""
    write_memory(path, kind="recycling", tokenizer="t", arrays={"successors": np.zeros((4, 8), np.int32)}, facts={})


def test_the_next_save_removes_what_kill_left(tmp_path: Path) -> None:
    """Guards disks that fill with copies of a memory, and what users believe to be deleted."""
    path = tmp_path / "memory"
    with writer(path) as child:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert len(beside(path)) == 1
    save(path)
    assert beside(path) == []


def test_a_live_writer_is_left_alone(tmp_path: Path) -> None:
    """Guards a save that takes long, while another process or thread saves to the same file."""
    path = tmp_path / "memory"
    with writer(path) as child:
        held = beside(path)
        save(path)
        assert remove_stale(path) == []
        assert beside(path) == held
        child.communicate("")
        assert child.returncode == 0
    assert path.read_bytes() == b"new"
    assert beside(path) == []
    with write_aside(path):
        assert remove_stale(path) == []


def test_other_hidden_files_stay(tmp_path: Path) -> None:
    """A user's own copies are called otherwise, and links of other memories have other names."""
    for name in (".memory.old", ".memory2.abc.saving", "memory.saving"):
        (tmp_path / name).write_text("mine")
    save(tmp_path / "memory")
    assert len(beside(tmp_path / "memory")) == 3


@pytest.mark.parametrize("command", [["info"], ["clear", "--yes"]])
def test_memory_commands_remove_it_too(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And say so, since the file held text."""
    path = tmp_path / "memory"
    save(path)
    with writer(path) as child:
        child.send_signal(signal.SIGKILL)
        child.wait()
    main(["memory", command[0], str(path), *command[1:]])
    assert "left from a killed save" in capsys.readouterr().err
    assert beside(path) == []


@pytest.mark.parametrize(("mode", "expected"), [(PRIVATE, 0o600), (SHARED, 0o644)])
def test_permissions_are_those_of_the_kind_of_file(mode: int, expected: int, tmp_path: Path) -> None:
    """Guards both ways: memories hold users' texts, while shards and vocabularies are read by others."""
    before = os.umask(0o022)
    try:
        with write_aside(tmp_path / "a", mode=mode) as file:
            file.write(b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == expected
