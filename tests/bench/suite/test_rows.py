"""The rows on disk, from which an interrupted run resumes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benches import row
from speculant.bench.suite.rows import NAME, Divergence, RowFile
from speculant.core.errors import FileError, UsageError

SETTINGS = {"methods": ["none"], "trials": 1}


def test_resuming(tmp_path: Path) -> None:
    """Rows are read back as they were written, and a line that was cut off is dropped."""
    file = RowFile(tmp_path / "out", SETTINGS)
    rows = [row("none"), row("x", identical=False, divergence=Divergence(3, 0.5, False))]
    file.append(rows)
    file.append([replace(each, item=1) for each in rows])
    path = tmp_path / "out" / NAME
    path.write_text(path.read_text()[:-9])
    again = RowFile(tmp_path / "out", SETTINGS)
    assert again.rows == rows
    assert again.finished_items("t", 0.0, 0) == 1
    assert again.finished_items("t", 0.0, 1) == again.finished_items("u", 0.0, 0) == 0
    again.append([replace(each, item=1) for each in rows])
    assert RowFile(tmp_path / "out", SETTINGS).finished_items("t", 0.0, 0) == 2


def test_other_settings(tmp_path: Path) -> None:
    """They are refused by name, unless the old rows may be discarded."""
    RowFile(tmp_path, SETTINGS).append([row("none")])
    with pytest.raises(UsageError, match=r"other settings \(trials\).*--restart"):
        RowFile(tmp_path, SETTINGS | {"trials": 2})
    assert RowFile(tmp_path, SETTINGS | {"trials": 2}, restart=True).rows == []


def test_a_file_without_rows(tmp_path: Path) -> None:
    """Another program's file is not overwritten, and a folder must be one."""
    (tmp_path / NAME).write_text("hello\n")
    with pytest.raises(FileError, match="holds no rows"):
        RowFile(tmp_path, SETTINGS)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot write"):
        RowFile(tmp_path / "file", SETTINGS)
