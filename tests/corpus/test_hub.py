"""Datasets of the Hugging Face hub; a module in place of theirs, since tests have no network."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from speculant.cli.main import main
from speculant.core.errors import FileError, UnsupportedError, UsageError
from speculant.corpus.hub import find_dataset, read_dataset
from speculant.memory.file import read_header

CaptureFixture = pytest.CaptureFixture[str]
ROWS = [{"prompt": f"question {n}", "output": f"answer {n}"} for n in range(6)]


class Streamed:
    """Rows as `datasets` streams them."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.info = SimpleNamespace(splits={"train": SimpleNamespace(num_bytes=100)})

    def skip(self, count: int) -> Streamed:
        return Streamed(self.rows[count:])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in self.rows:
            if "error" in row:
                raise ConnectionError("the line was cut.\nmore")
            yield row


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return the calls of `load_dataset`, which knows one dataset."""
    found: list[tuple[Any, ...]] = []

    def load_dataset(repository: str, configuration: str | None, **options: Any) -> Streamed:
        found.append((repository, configuration, options["split"], options["revision"], options["streaming"]))
        if repository != "org/name":
            raise ValueError(f"Dataset '{repository}' doesn't exist on the Hub.")
        return Streamed(ROWS)

    module = SimpleNamespace(load_dataset=load_dataset, disable_progress_bars=lambda: None)
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *_: SimpleNamespace(sha="c0ffee"))
    return found


def test_names(calls: list[tuple[Any, ...]]) -> None:
    """Split and configuration are optional; the revision is fixed, so that a continued build reads the same rows."""
    for name, expected in (
        ("hf:org/name", (None, "train")),
        ("hf:org/name:test", (None, "test")),
        ("hf:org/name/main:test", ("main", "test")),
    ):
        found = find_dataset(name)
        assert (found.configuration, found.split) == expected
        assert calls[-1] == ("org/name", *expected, "c0ffee", True)
    assert find_dataset("hf:org/name").size == 100
    for name in ("hf:", "hf:name", "hf:org/", "hf:org/name:", "hf:a/b/c/d"):
        with pytest.raises(UsageError, match="is no dataset"):
            find_dataset(name)


def test_rows(calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """From any row on; rows of another form are named with their columns."""
    monkeypatch.setitem(ROWS[2], "prompt", 3)
    rejected: list[str] = []
    dataset = find_dataset("hf:org/name")

    def places(skip: int) -> list[int]:
        rows = read_dataset(dataset, vocabulary=1, advance=lambda _: None, reject=rejected.append, skip=skip)
        return [row.place for row in rows]

    assert places(0) == [1, 2, 4, 5, 6]
    assert places(4) == [5, 6]
    assert len(rejected) == 1
    assert "row 3 with prompt, output: a row is" in rejected[0]


def test_failures_name_the_way_out(calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether there is no such dataset, no network or no package."""
    with pytest.raises(
        FileError, match=r"cannot read the dataset org/other from the hub: Dataset .* save it as \.jsonl"
    ):
        find_dataset("hf:org/other")
    dataset = find_dataset("hf:org/name")
    monkeypatch.setitem(ROWS[1], "error", True)
    with pytest.raises(FileError, match=r"the line was cut\. Check"):
        list(read_dataset(dataset, vocabulary=1, advance=lambda _: None, reject=pytest.fail))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'speculant\[datasets\]'"):
        find_dataset("hf:org/name")


def test_a_base_of_a_dataset(
    calls: list[tuple[Any, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """When the network fails the work is kept; the same command continues at the revision at which it began."""
    monkeypatch.setattr("speculant.corpus.base.INTERVAL", 0)
    monkeypatch.setattr("speculant.corpus.rows.BATCH", 1)
    out = tmp_path / "base"
    argv = ["corpus", "build", "--kind", "mix-base", "--model", "bundled", "-o", str(out), "hf:org/name@0.5"]
    with monkeypatch.context() as broken:
        broken.setitem(ROWS[3], "error", True)
        assert main(argv) == 1
    assert "the line was cut" in (error := capsys.readouterr().err)
    assert "give the same command again to continue" in error
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *_: SimpleNamespace(sha="newer"))
    assert main(argv) == 0
    assert "continuing the unfinished work" in capsys.readouterr().err
    assert calls[-1][3] == "c0ffee"
    (source,) = read_header(out)[0]["facts"]["sources"]
    assert (source["name"], source["documents"], source["revision"]) == ("hf:org/name", 6, "c0ffee")
