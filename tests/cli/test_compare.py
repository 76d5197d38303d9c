"""The command that compares two results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benches import row
from speculant.bench.report.summary import summary
from speculant.cli.main import main

CaptureFixture = pytest.CaptureFixture[str]


def test_two_results(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Files or folders; a table with what is different below it, or JSON."""
    for name, seconds in (("a", 5.0), ("b", 2.5)):
        (tmp_path / name).mkdir()
        rows = [row("none"), row("x", seconds=seconds)]
        (tmp_path / name / "result.json").write_text(json.dumps({"methods": summary(rows), "labels": [name]}))
    argv = ["compare", str(tmp_path / "a"), str(tmp_path / "b" / "result.json")]
    assert main(argv) == 0
    out = capsys.readouterr().out.splitlines()
    assert "2.000x" in out[2]
    assert out[-1] == "different: labels: ['a'] and ['b']"
    assert main([*argv, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][1]["speedup"]["ratio"] == 2.0


@pytest.mark.parametrize(("text", "message"), [(None, "cannot read"), ("{", "not JSON"), ("{}", "not a result")])
def test_faults(text: str | None, message: str, tmp_path: Path, capsys: CaptureFixture) -> None:
    """What is no result is named."""
    if text is not None:
        (tmp_path / "a.json").write_text(text)
    assert main(["compare", str(tmp_path / "a.json"), str(tmp_path / "a.json")]) == 1
    assert message in capsys.readouterr().err
