"""Documents of a corpus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from speculant.cli import documents
from speculant.cli.documents import Document, parse_row, read_documents
from speculant.core.errors import FileError


def read(path: Path) -> tuple[list[Document], int, list[str]]:
    sizes: list[int] = []
    rejected: list[str] = []
    found = list(read_documents(path, vocabulary=10, advance=sizes.append, reject=rejected.append))
    return found, sum(sizes), rejected


def test_text_is_cut_at_separators(tmp_path: Path) -> None:
    """A line of its own divides, the same letters within a line do not; every byte counts as progress."""
    path = tmp_path / "t.txt"
    path.write_bytes(b"a\nb <|endoftext|>\n<|endoftext|>\r\n\xff\n<|endoftext|>")
    found, size, rejected = read(path)
    assert found == ["a\nb <|endoftext|>\n", "\N{REPLACEMENT CHARACTER}\n", ""]
    assert (size, rejected) == (path.stat().st_size, [])


def test_text_without_separators_is_one_document(tmp_path: Path) -> None:
    """Blank lines are part of a text."""
    (tmp_path / "t").write_text("a\n\nb")
    assert read(tmp_path / "t")[0] == ["a\n\nb"]


def test_long_texts_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file larger than memory is read piece by piece, whole lines at a time."""
    monkeypatch.setattr(documents, "LONGEST", 5)
    (tmp_path / "t").write_text("abc\n" * 4 + "d")
    assert read(tmp_path / "t")[0] == ["abc\nabc\n", "abc\nabc\n", "d"]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"text": "a"}, ["a"]),
        ({"messages": [{"role": "user", "content": "a"}, {"content": None}, {"content": "b"}]}, ["a", "b"]),
        ({"ids": [1, 2]}, [[1, 2]]),
        ({"prompt_ids": [1], "output_ids": [2, 3]}, [[1, 2, 3]]),
        ({"output_ids": [2, 3]}, [[2, 3]]),
    ],
)
def test_rows(row: Any, expected: list[Document]) -> None:
    """Every form that recorded traces and data sets come in."""
    assert parse_row(row, 10) == expected


@pytest.mark.parametrize(
    "row",
    [
        {"text": 3},
        {"messages": []},
        {"messages": ["a"]},
        {"ids": [1, 10]},
        {"ids": [-1]},
        {"ids": [1.0]},
        {"ids": [True]},
        {"prompt_ids": 3},
        {"prompt_ids": [1], "output_ids": 3},
        {"text": "\ud800"},
        ["a"],
        None,
    ],
)
def test_rows_that_hold_nothing_usable(row: Any) -> None:
    """Neither wrong types nor foreign ids get into a table."""
    with pytest.raises(ValueError, match=r"row is|token ids|surrogate"):
        parse_row(row, 10)


def test_bad_rows_are_left_out_and_named(tmp_path: Path) -> None:
    """One bad row must not cost the work of hours, nor vanish silently."""
    path = tmp_path / "t.jsonl"
    rows = [b"{", b"", json.dumps({"text": "a"}).encode(), b"\xff", b"[" * 100_000, b'{"x": 1}']
    path.write_bytes(b"\n".join(rows))
    found, size, rejected = read(path)
    assert found == ["a"]
    assert size == path.stat().st_size
    reasons = ["1: not JSON", "4: not UTF-8", "5: nested too deeply", "6: a row is"]
    for message, reason in zip(rejected, reasons, strict=True):
        assert message.startswith(f"{path}:{reason}")


def test_a_missing_file_is_an_error_of_the_file(tmp_path: Path) -> None:
    """No traceback for a misspelled name."""
    with pytest.raises(FileError, match="No such file"):
        read(tmp_path / "none")
