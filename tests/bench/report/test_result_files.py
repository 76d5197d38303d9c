"""The files of a benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benches import row
from speculant.bench.report.result_files import read_result, write_results
from speculant.bench.report.summary import summary
from speculant.core.errors import FileError

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


def test_results_are_read_back(tmp_path: Path) -> None:
    """By the file or by its folder; one short trial is noted in all three files."""
    rows = summary([row("none"), row("x", seconds=2.5)])
    write_results(tmp_path, rows, labels=["forced"], notes=["A note."], settings={"limit": 1}, environment={"cpu": "c"})
    found = read_result(tmp_path)
    assert found == read_result(tmp_path / "result.json")
    assert found["methods"] == json.loads(json.dumps(rows))
    assert found["notes"][0] == "A note."
    for name in ("result.json", "table.md", "report.html"):
        assert "rest on one trial" in (tmp_path / name).read_text()
    with pytest.raises(FileError, match="cannot write"):
        write_results(tmp_path / "nowhere", rows, labels=[], notes=[], settings={}, environment={})


@pytest.mark.parametrize(
    "path", [*sorted(RESULTS.glob("forced-*.json")), RESULTS / "growth.json"], ids=lambda p: p.stem
)
def test_earlier_results_are_read(path: Path) -> None:
    """Files that earlier versions wrote."""
    assert "environment" in read_result(path)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is not JSON"), ("[]", "is not a result"), ("{}", "is not a result")]
)
def test_other_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    """The message names the file."""
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(FileError, match=message):
        read_result(tmp_path / "a.json")
    with pytest.raises(FileError, match="cannot read"):
        read_result(tmp_path / "b.json")
