"""The memory file: whole or refused, old or new, never half of one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speculant.core.errors import CorruptMemoryError, FileError, ForeignMemoryError
from speculant.memory import file as memory_file
from speculant.memory.file import MAGIC, read_any_memory, read_memory, write_memory

ARRAYS = {
    "first": np.arange(5, dtype=np.uint32),
    "second": np.arange(33, dtype=np.uint8).reshape(11, 3),
    "none": np.empty((0, 3), np.uint8),
    "weight": np.linspace(0, 1, 40),
}
FACTS = {"vocabulary": 7, "texts": ["a", "b"]}


def write(path: Path, **changes: Any) -> None:
    """Write the test's memory."""
    write_memory(path, **{"kind": "trigram", "tokenizer": "abc", "arrays": ARRAYS, "facts": FACTS, **changes})


def read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read it back as the kind it is."""
    return read_memory(path, kind="trigram", tokenizer="abc")


def holds_the_memory(path: Path) -> bool:
    """Return whether the file reads as what `write` wrote."""
    arrays, facts = read(path)
    same = [np.array_equal(arrays[name], array) and arrays[name].dtype == array.dtype for name, array in ARRAYS.items()]
    return list(arrays) == list(ARRAYS) and all(same) and facts == FACTS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a good memory file, alone in its folder."""
    write(tmp_path / "memory")
    return tmp_path / "memory"


def test_round_trip(path: Path) -> None:
    """Arrays come back with their values, types and shapes, mapped from the file and read-only."""
    assert holds_the_memory(path)
    assert os.listdir(path.parent) == ["memory"]
    for array in read(path)[0].values():
        assert type(array) is np.ndarray
        assert not array.flags.writeable
        if array.size:
            assert isinstance(array.base, np.memmap)
            assert array.base.offset % 64 == 0


def test_any_kind_can_be_read(path: Path) -> None:
    """A tool that knows neither kind nor tokenizer gets both, and the same arrays, checked the same way."""
    memory = read_any_memory(path)
    assert (memory.kind, memory.tokenizer, memory.facts) == ("trigram", "abc", FACTS)
    assert {name: array.tolist() for name, array in memory.arrays.items()} == {
        name: array.tolist() for name, array in ARRAYS.items()
    }
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(CorruptMemoryError, match="cut short"):
        read_any_memory(path)


def test_arrays_of_any_layout(tmp_path: Path) -> None:
    """Slices and transposed arrays are written as what they hold."""
    square = np.arange(16, dtype=np.int64).reshape(4, 4)
    write(tmp_path / "memory", arrays={"transposed": square.T, "strided": square[::2, 1]})
    arrays, _ = read(tmp_path / "memory")
    assert np.array_equal(arrays["transposed"], square.T)
    assert np.array_equal(arrays["strided"], square[::2, 1])


def test_a_mapped_memory_outlives_its_file(path: Path) -> None:
    """Saving over the file that is in use leaves the arrays that were mapped before as they are."""
    arrays, _ = read(path)
    write(path, arrays={"first": np.zeros(5, np.uint32)})
    assert arrays["first"].tolist() == [0, 1, 2, 3, 4]
    assert read(path)[0]["first"].tolist() == [0] * 5


def test_any_flipped_bit_is_noticed(path: Path) -> None:
    """Damage anywhere is refused; only what pads the arrays may change, and then nothing read does."""
    good = path.read_bytes()
    harmless = 0
    for offset in range(len(good)):
        damaged = bytearray(good)
        damaged[offset] ^= 1 << offset % 8
        path.write_bytes(damaged)
        try:
            assert holds_the_memory(path)
            harmless += 1
        except CorruptMemoryError:
            pass
    padding = sum(-array.nbytes % 64 for array in ARRAYS.values())
    assert harmless == padding


def test_any_truncation_is_noticed(path: Path) -> None:
    """A file cut anywhere is refused, the empty one included, unless only padding is gone."""
    good = path.read_bytes()
    padding = -ARRAYS["weight"].nbytes % 64
    whole = len(good) - padding
    for length in sorted({*range(20), *range(20, len(good), 7), whole - 1, whole, len(good) - 1}):
        path.write_bytes(good[:length])
        if length < whole:
            with pytest.raises(CorruptMemoryError, match="memory"):
                read(path)
        else:
            assert holds_the_memory(path)


@pytest.mark.parametrize("content", [b"hello", MAGIC, MAGIC + bytes(8), MAGIC + b"\xff" * 8, b"{}" * 500])
def test_other_files_are_refused(path: Path, content: bytes) -> None:
    """What is no memory file is called that, whatever its header claims."""
    path.write_bytes(content)
    with pytest.raises(CorruptMemoryError, match="memory"):
        read(path)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"kind": "suffix", "tokenizer": "abc"}, "kind 'trigram', not 'suffix'"),
        ({"kind": "trigram", "tokenizer": "xyz"}, "fingerprint abc, this model's is xyz"),
    ],
)
def test_foreign_files_are_refused(path: Path, asked: dict[str, str], message: str) -> None:
    """A memory of another method or tokenizer would draft nonsense; the message names the cause."""
    with pytest.raises(ForeignMemoryError, match=message):
        read_memory(path, **asked)


def test_a_base_in_place_of_a_memory(path: Path) -> None:
    """Guards the way out: what is wrong is the option, not the file."""
    write_memory(path, kind="mix-base", tokenizer="abc", arrays={}, facts={})
    with pytest.raises(ForeignMemoryError, match="pass it with --base"):
        read(path)


def test_a_newer_format_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error for a file of a later version is not that of a damaged one."""
    monkeypatch.setattr(memory_file, "VERSION", 2)
    write(path)
    monkeypatch.undo()
    with pytest.raises(ForeignMemoryError, match="format version 2"):
        read(path)


@pytest.mark.parametrize("place", ["nowhere/memory", "file/memory", "folder"])
def test_places_that_cannot_be_written(tmp_path: Path, place: str) -> None:
    """A missing folder, a file in its place, a folder in the file's: each is a FileError that leaves no rubbish."""
    (tmp_path / "file").write_text("something")
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileError, match="cannot write"):
        write(tmp_path / place)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(path: Path) -> None:
    """Without the right to write the old file stays and the message names the cause."""
    path.parent.chmod(0o500)
    try:
        with pytest.raises(FileError, match="Permission denied"):
            write(path)
    finally:
        path.parent.chmod(0o700)
    assert holds_the_memory(path)


def test_places_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file and a folder are FileErrors, not damage."""
    with pytest.raises(FileError, match="no memory file"):
        read(tmp_path / "nothing")
    with pytest.raises(FileError, match="cannot read"):
        read(tmp_path)


@pytest.mark.parametrize("moment", ["fsync", "replace"])
@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_save_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, failure: BaseException
) -> None:
    """A full disk or Ctrl-C in the middle of a save changes nothing and leaves no temporary file."""

    def fail(*_: Any) -> None:
        raise failure

    monkeypatch.setattr(os, moment, fail)
    with pytest.raises((FileError, KeyboardInterrupt)) as caught:
        write(path, facts={})
    monkeypatch.undo()
    assert isinstance(caught.value, KeyboardInterrupt) or "No space left" in str(caught.value)
    assert holds_the_memory(path)
    assert os.listdir(path.parent) == ["memory"]


CHILD = """
import os, signal, sys
from pathlib import Path
import numpy as np
from speculant.memory.file import write_memory
if sys.argv[2]:
    setattr(os, sys.argv[2], lambda *_: os.kill(os.getpid(), signal.SIGKILL))
while True:
    arrays = {"a": np.zeros(400_000)}
    write_memory(Path(sys.argv[1]), kind="trigram", tokenizer="abc", arrays=arrays, facts={})
    print("saved", flush=True)
"""


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_killed_while_saving(path: Path, moment: str) -> None:
    """After kill -9 before the new file is in place the old one is there and whole."""
    done = subprocess.run([sys.executable, "-c", CHILD, str(path), moment], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert holds_the_memory(path)


def test_killed_at_any_moment(tmp_path: Path) -> None:
    """After kill -9 in a loop of saves the file is one that was saved."""
    path = tmp_path / "memory"
    for wait in (0.0, 0.004, 0.009):
        with subprocess.Popen([sys.executable, "-c", CHILD, str(path), ""], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(wait)
            child.kill()
        assert np.array_equal(read(path)[0]["a"], np.zeros(400_000))
