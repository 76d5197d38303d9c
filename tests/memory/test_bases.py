"""The user's folder of bases."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pytest

from speculant.core.errors import CorruptMemoryError, FileError, ForeignMemoryError, UsageError
from speculant.memory.bases import add_base, bases_folder, find_bases, list_bases, read_base_header, remove_base
from speculant.memory.file import write_memory


def base(path: Path, *, tokenizer: str = "t", kind: str = "mix-base") -> Path:
    """Write a file that has the header of a base."""
    arrays = {"lines": np.ones((4, 16), np.uint32)}
    write_memory(path, kind=kind, tokenizer=tokenizer, arrays=arrays, facts={"tokens": 5, "license": "MIT"})
    return path


def test_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable of its own is first, then the one for all data; relative ones of the latter are ignored."""
    monkeypatch.setenv("SPECULANT_BASES", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "b"))
    assert bases_folder() == tmp_path / "a"
    monkeypatch.delenv("SPECULANT_BASES")
    assert bases_folder() == tmp_path / "b" / "speculant" / "bases"
    monkeypatch.setenv("XDG_DATA_HOME", "b")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert bases_folder() == tmp_path / ".local" / "share" / "speculant" / "bases"


def test_bases_are_found_by_tokenizer(tmp_path: Path) -> None:
    """In order of their names; a folder that is not there holds none."""
    folder = tmp_path / "bases"
    assert find_bases("t", folder=folder) == []
    for name, tokenizer in (("b", "t"), ("a", "t"), ("c", "other")):
        add_base(base(tmp_path / "file", tokenizer=tokenizer), folder=folder, name=name)
    assert [path.name for path in find_bases("t", folder=folder)] == ["a.speculant", "b.speculant"]
    assert [each.name for each in list_bases(folder, pytest.fail)] == ["a", "b", "c"]


def test_unreadable_files_are_warnings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A model starts whatever lies in the folder."""
    base(tmp_path / "good.speculant")
    base(tmp_path / "memory.speculant", kind="mix")
    whole = (tmp_path / "good.speculant").read_bytes()
    (tmp_path / "short.speculant").write_bytes(whole[:-1])
    (tmp_path / "header.speculant").write_bytes(whole[:30])
    (tmp_path / "text.txt").write_text("no base")
    (tmp_path / "gone.speculant").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe.speculant")
    (tmp_path / ".hidden").write_text("a copy that is being made")
    (tmp_path / "folder").mkdir()
    with caplog.at_level(logging.WARNING):
        assert find_bases("t", folder=tmp_path) == [tmp_path / "good.speculant"]
    messages = " ".join(record.getMessage() for record in caplog.records)
    assert len(caplog.records) == 6
    for name in ("memory", "short", "header", "text", "gone", "pipe"):
        assert f"{name}." in messages


def test_only_intact_bases_are_added(tmp_path: Path) -> None:
    """Everything else is refused with its reason, and nothing is left in the folder."""
    folder = tmp_path / "bases"
    whole = base(tmp_path / "good").read_bytes()
    (tmp_path / "damaged").write_bytes(whole[:-1] + b"x")
    (tmp_path / "short").write_bytes(whole[:-1])
    base(tmp_path / "memory", kind="mix")
    for name, error, message in (
        ("damaged", CorruptMemoryError, "checksum"),
        ("short", CorruptMemoryError, "cut short"),
        ("memory", ForeignMemoryError, "not a base"),
        ("nothing", FileError, "no memory file"),
    ):
        with pytest.raises(error, match=message):
            add_base(tmp_path / name, folder=folder)
    assert not folder.exists() or not list(folder.iterdir())


def test_names(tmp_path: Path) -> None:
    """The file's own by default; paths and hidden names are refused, and taken ones unless they may be replaced."""
    folder, file = tmp_path / "bases", base(tmp_path / "chat.speculant")
    assert add_base(file, folder=folder).path == folder / "chat.speculant"
    with pytest.raises(UsageError, match="a base 'chat' exists already"):
        add_base(file, folder=folder)
    base(file, tokenizer="new")
    assert add_base(file, folder=folder, replace=True).tokenizer == "new"
    for name in ("", "a/b", "..", ".a", "a\n"):
        with pytest.raises(UsageError, match="cannot be called"):
            add_base(file, folder=folder, name=name)
    assert [path.name for path in folder.iterdir()] == ["chat.speculant"]


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk costs neither the old base nor leaves half of a new one."""
    folder, file = tmp_path / "bases", base(tmp_path / "chat.speculant")
    before = add_base(file, folder=folder).path.read_bytes()
    base(file, tokenizer="new")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("speculant.memory.bases.shutil.copyfileobj", full)
    with pytest.raises(FileError, match="No space left"):
        add_base(file, folder=folder, replace=True)
    assert [path.name for path in folder.iterdir()] == ["chat.speculant"]
    assert (folder / "chat.speculant").read_bytes() == before


def test_removing(tmp_path: Path) -> None:
    """By name, with or without the suffix; no other file can be named."""
    folder, file = tmp_path / "bases", base(tmp_path / "chat.speculant")
    for name in ("chat", "chat.speculant"):
        add_base(file, folder=folder)
        assert remove_base(name, folder=folder) == folder / "chat.speculant"
    with pytest.raises(UsageError, match="There are none"):
        remove_base("chat", folder=folder)
    add_base(file, folder=folder)
    for name in ("other", "../chat", ""):
        with pytest.raises(UsageError, match="There are: chat"):
            remove_base(name, folder=folder)
    assert file.exists()


def test_a_mapped_base_survives_its_removal(tmp_path: Path) -> None:
    """A process that drafts with it goes on."""
    folder = tmp_path / "bases"
    path = add_base(base(tmp_path / "chat"), folder=folder).path
    mapped = np.memmap(path, np.uint8, "r")
    before = bytes(mapped)
    add_base(base(tmp_path / "chat", tokenizer="new"), folder=folder, replace=True)
    remove_base("chat", folder=folder)
    assert bytes(mapped) == before


def test_headers_alone_are_read(tmp_path: Path) -> None:
    """Looking for bases costs no reading of gigabytes: damage within the arrays is not noticed here."""
    path = base(tmp_path / "chat.speculant")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    found = read_base_header(path)
    assert (found.name, found.size, found.facts["license"]) == ("chat", path.stat().st_size, "MIT")
