"""Documents of a corpus."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from speculant.core.errors import FileError
from speculant.corpus import documents
from speculant.corpus.documents import read_rows, read_values, why_no_text
from speculant.corpus.rows import Document


def read(path: Path) -> tuple[list[Document], int, list[str]]:
    sizes: list[int] = []
    rejected: list[str] = []
    rows = list(read_rows(path, vocabulary=10, advance=sizes.append, reject=rejected.append))
    return [document for row in rows for document in row.documents], sum(sizes), rejected


@pytest.mark.parametrize(
    ("name", "first"),
    [("t.md", ["a\nb <|endoftext|>c\n"]), ("t.txt", ["a\nb ", "c\n"]), ("t.txt.gz", ["a\nb ", "c\n"])],
)
def test_text_is_cut_at_separators(name: str, first: list[str], tmp_path: Path) -> None:
    """A line of its own divides, the same letters within a line only in .txt; every byte counts as progress."""
    path, content = tmp_path / name, b"a\nb <|endoftext|>c\n<|endoftext|>\r\n\xff\n<|endoftext|>"
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    found, size, rejected = read(path)
    assert found == [*first, "\N{REPLACEMENT CHARACTER}\n", ""]
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


@pytest.mark.parametrize("packed", [False, True])
def test_rows_after_a_place(packed: bool, tmp_path: Path) -> None:
    """A build that continues gets what it has not read, whatever the form; every byte counts as progress."""
    forms = {
        "a.jsonl": b'{"text": "a"}\n\n{"x": 1}\n{"text": "b"}\n{"text": "c"}',
        "a.json": b'[{"text": "a"}, {"text": "b"},\n{"text": "c"}]\n',
        "a.txt": b"a\n<|endoftext|>\nb\n<|endoftext|>\nc",
    }
    for name, content in forms.items():
        path = tmp_path / (name + ".gz" * packed)
        path.write_bytes(gzip.compress(content) if packed else content)
        sizes: list[int] = []

        def rows(skip: int, path: Path = path, sizes: list[int] = sizes) -> list[tuple[int, str]]:
            found = read_rows(path, vocabulary=1, advance=sizes.append, reject=lambda _: None, skip=skip)
            return [(row.place, str(row.documents[0]).strip()) for row in found]

        everything = rows(0)
        assert [text for _, text in everything] == ["a", "b", "c"]
        assert sum(sizes) == path.stat().st_size
        for number, (place, _) in enumerate(everything, start=1):
            assert rows(place) == everything[number:]


@pytest.mark.parametrize("content", ['{"name": "x", "version": 2}', "[1, 2]", "// a comment\n{}", '{"text": '])
def test_other_json_is_text(content: str, tmp_path: Path) -> None:
    """Settings in folders of code are learned as they are written."""
    (tmp_path / "a.json").write_text(content)
    assert read(tmp_path / "a.json")[0] == [content]


def test_one_row_is_a_file(tmp_path: Path) -> None:
    """A single conversation need not be a list."""
    (tmp_path / "a.json").write_text('{"messages": [{"role": "user",\n "content": "a"}]}')
    assert read(tmp_path / "a.json")[0] == ["a"]


def test_damaged_compression_costs_the_rest_only(tmp_path: Path) -> None:
    """What was read before the damage is kept, and the damage is named."""
    whole = gzip.compress(b"".join(b'{"text": "%d"}\n' % n for n in range(20000)))
    (tmp_path / "a.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    found, size, rejected = read(tmp_path / "a.jsonl.gz")
    assert found[0] == "0"
    assert 0 < len(found) < 20000
    assert size == len(whole) // 2
    assert "is damaged" in rejected[-1]
    (tmp_path / "b.gz").write_bytes(b"not compressed")
    assert why_no_text(tmp_path / "b.gz") == "is damaged"


def test_compressed_binaries_are_recognised(tmp_path: Path) -> None:
    """An archive is no text, compressed or not."""
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(bytes(1000) + b"text"))
    assert why_no_text(tmp_path / "a.tar.gz") == "is binary"


def test_a_line_longer_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts without line ends are cut between characters, and rows that are too long left out."""
    monkeypatch.setattr(documents, "LONGEST", 5)
    (tmp_path / "t").write_text("äöü" * 5)
    found = read(tmp_path / "t")[0]
    assert "".join(map(str, found)) == "äöü" * 5
    assert len(found) > 1
    monkeypatch.setattr(documents, "LONGEST_ROW", 16)
    (tmp_path / "t.jsonl").write_text('{"text": "%s"}\n{"text": "b"}\n' % ("a" * 40))
    values = list(read_values(tmp_path / "t.jsonl", advance=lambda _: None, reject=lambda _: None))
    assert values == [(2, {"text": "b"})]
