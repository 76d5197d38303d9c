"""Sources of a corpus."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from speculant.core.errors import FileError, UsageError
from speculant.corpus.sources import TextSource, find_source, list_folder, read_source, split_weight


def texts(source: TextSource, **position: int) -> list[str]:
    rows = read_source(source, vocabulary=10, advance=lambda _: None, reject=pytest.fail, **position)
    return [str(document) for _, row in rows for document in row.documents]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.txt", ("a.txt", 1)),
        ("a.txt@2", ("a.txt", 2)),
        ("a.txt@0.25", ("a.txt", 0.25)),
        ("a@b.txt", ("a@b.txt", 1)),
        ("a@b.txt@3", ("a@b.txt", 3)),
        ("hf:org/name:train@0.5", ("hf:org/name:train", 0.5)),
        ("@2", ("@2", 1)),
    ],
)
def test_weights(text: str, expected: tuple[str, float]) -> None:
    """What follows the last @ is a weight if it is a number."""
    assert split_weight(text) == expected


@pytest.mark.parametrize("number", ["0", "-1", "nan", "inf", "1e9"])
def test_weights_that_make_no_sense(number: str) -> None:
    """A slip must not silence a source, nor all others."""
    with pytest.raises(UsageError, match=r"the weight of a\.txt must be above 0"):
        split_weight(f"a.txt@{number}")


def test_a_path_that_exists_is_taken_as_it_is(tmp_path: Path) -> None:
    """A file may be called so."""
    path = tmp_path / "notes@2"
    path.write_text("a")
    assert split_weight(str(path)) == (str(path), 1)
    found = find_source(f"{path}@3", pytest.fail)
    assert (found.name, found.weight, texts(found)) == ("notes@2", 3, ["a"])


def test_folders_are_read_in_a_stable_order(tmp_path: Path) -> None:
    """All text files at any depth; hidden, binary and empty ones are counted, links to folders not followed."""
    for name in ("b.py", "a.txt", "sub/deep/c.md", "sub/d.jsonl", ".git/config", "sub/.env", "__x__.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"text": "d"}' if name.endswith(".jsonl") else path.stem)
    (tmp_path / "sub" / "picture.png").write_bytes(bytes(range(256)))
    (tmp_path / "empty").write_text("")
    (tmp_path / "again").symlink_to(tmp_path / "sub")
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    files, left_out = list_folder(tmp_path)
    names = [str(file.path.relative_to(tmp_path)) for file in files]
    assert names == ["__x__.py", "a.txt", "b.py", "sub/d.jsonl", "sub/deep/c.md"]
    assert left_out == {"binary": 1, "empty": 1, "hidden": 2, "special": 2}
    source = find_source(str(tmp_path), pytest.fail)
    assert texts(source) == ["__x__", "a", "b", "d", "c"]
    assert texts(source, file=2, skip=9) == ["d", "c"]


def test_names_show_no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base is passed on; where its builder keeps files is nobody's business."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("a")
    monkeypatch.chdir(tmp_path / "texts")
    assert find_source(str(tmp_path / "texts" / "a.txt"), pytest.fail).name == "a.txt"
    for name in (".", f"{tmp_path}/texts/", "../texts"):
        assert find_source(name, pytest.fail).name == "texts"
    assert find_source("..", pytest.fail).name == tmp_path.name


def test_missing_sources(tmp_path: Path) -> None:
    """A misspelled name is an error before any work."""
    for name in ("none.txt", "none.txt@2"):
        with pytest.raises(FileError, match="cannot read"):
            find_source(str(tmp_path / name), pytest.fail)
