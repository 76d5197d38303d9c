"""The folder of unfinished work."""

from __future__ import annotations

from pathlib import Path

import pytest

from speculant.core.errors import FileError, UsageError
from speculant.corpus.work_folder import WorkFolder, difference


def test_plan_and_state_survive(tmp_path: Path) -> None:
    """Another process finds them, and a new plan drops the state and the data."""
    work = WorkFolder(tmp_path / "base")
    assert (work.plan(), work.state()) == (None, None)
    work.begin({"a": 1})
    (work.data / "records").write_text("x")
    work.save({"b": 2})
    work.close()
    again = WorkFolder(tmp_path / "base")
    assert (again.plan(), again.state()) == ({"a": 1}, {"b": 2})
    assert (again.data / "records").exists()
    again.begin({"a": 3})
    assert (again.plan(), again.state()) == ({"a": 3}, None)
    assert not list(again.data.iterdir())
    again.close()
    again.remove()
    assert not list(tmp_path.iterdir())


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """Two would mix up their records."""
    work = WorkFolder(tmp_path / "base")
    with pytest.raises(UsageError, match="another process is building"):
        WorkFolder(tmp_path / "base")
    work.close()
    WorkFolder(tmp_path / "base").close()


def test_damaged_files(tmp_path: Path) -> None:
    """They are refused with the way out."""
    work = WorkFolder(tmp_path / "base")
    (work.path / "plan.json").write_text("{")
    with pytest.raises(FileError, match="--restart"):
        work.plan()
    work.close()


def test_a_state_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one remains."""
    work = WorkFolder(tmp_path / "base")
    work.save({"a": 1})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("speculant.corpus.work_folder.os.fsync", full)
        with pytest.raises(FileError, match="No space left"):
            work.save({"a": 2})
    assert work.state() == {"a": 1}
    work.close()


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ({"--budget": 64, "files": [["a", 1], ["b", 2]]}, ""),
        ({"--budget": 65, "files": [["a", 1], ["b", 2]]}, "--budget was 64 and is now 65"),
        ({"--budget": None, "files": []}, "--budget was 64 and is now not given"),
        ({"--budget": 64, "files": [["a", 1]]}, "files had b, which is missing now"),
        ({"--budget": 64, "files": [["a", 1], ["b", 2], ["c", 1]]}, "files now has c, which is new"),
        ({"--budget": 64, "files": [["a", 1], ["b", 3]]}, "b has changed since"),
        ({"--budget": 64, "files": [["b", 2], ["a", 1]]}, "files are in another order"),
    ],
)
def test_differences_are_named(new: dict[str, object], message: str) -> None:
    """A user must see why the work of hours is not continued."""
    assert difference({"--budget": 64, "files": [["a", 1], ["b", 2]]}, new) == message
