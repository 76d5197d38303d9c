"""Suites of prompts, wherever they are."""

from __future__ import annotations

import gzip
import io
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from speculant.bench.suite.suites import SOURCES, find_suite, read_suite
from speculant.core.errors import FileError, UsageError


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests off the network and the user's folders."""

    def refuse(source: str, **options: Any) -> Any:
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPECULANT_DATA", raising=False)


def write(path: Path, *rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_rows_of_every_suite(tmp_path: Path) -> None:
    """Every suite's format is read; a row without a category gets the suite's name."""
    rows = [
        {"turns": ["a", "b"], "category": "writing"},
        {"prompt": "c", "canonical_solution": "x"},
        {"question": "d", "answer": "x"},
        {"query": "e", "docs": ["one", "two"]},
        {"text": "f", "code": "x"},
    ]
    write(tmp_path / "mine.jsonl", *rows)
    found = read_suite(str(tmp_path / "mine.jsonl"), None)
    assert [each.turns for each in found] == [("a", "b"), ("c",), ("d",), ("one\n\ntwo\n\ne",), ("f",)]
    assert [each.category for each in found] == ["writing", *["mine"] * 4]


def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--data, $SPECULANT_DATA/prompts and the download folder are searched in this order, under the files' names."""
    write(tmp_path / "cache" / "speculant" / "prompts" / "gsm8k-test.jsonl", {"question": "fetched"})
    assert read_suite("gsm8k", None)[0].turns == ("fetched",)
    write(tmp_path / "data" / "prompts" / "gsm8k-test.jsonl", {"question": "variable"})
    monkeypatch.setenv("SPECULANT_DATA", str(tmp_path / "data"))
    assert read_suite("gsm8k", None)[0].turns == ("variable",)
    write(tmp_path / "named" / "gsm8k-test.jsonl", {"question": "named"})
    assert read_suite("gsm8k", tmp_path / "named")[0].turns == ("named",)


def test_without_a_network(tmp_path: Path) -> None:
    """The message names the file, the option and the source."""
    with pytest.raises(FileError, match=r"could not be downloaded.*humaneval.jsonl.*--data.*github") as caught:
        read_suite("humaneval", tmp_path)
    assert SOURCES["humaneval"] in str(caught.value)


def test_with_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suite is downloaded once, unpacked, and kept."""
    packed = gzip.compress(b'{"prompt": "def f():"}\n')
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: io.BytesIO(packed))
    assert read_suite("humaneval", None)[0].turns == ("def f():",)
    monkeypatch.setattr(urllib.request, "urlopen", None)
    assert find_suite("humaneval", None).is_file()


@pytest.mark.parametrize(
    ("text", "message"), [("", "no prompts"), ("[1]\n", ":1: a row with"), ('\n{"turns": []}\n', ":2: a row with")]
)
def test_faults(text: str, message: str, tmp_path: Path) -> None:
    """A row in no format is named by its line."""
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(FileError, match=message):
        read_suite(str(tmp_path / "a.jsonl"), None)
    with pytest.raises(UsageError, match="no task 'spec-bank'"):
        read_suite("spec-bank", None)
    with pytest.raises(FileError, match="cannot read"):
        read_suite(str(tmp_path / "b.jsonl"), None)
