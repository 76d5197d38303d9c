"""The command that proves that drafts change nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from speculant.bench.suite import margins as judged
from speculant.bench.suite.margins import Margin
from speculant.cli.main import main

CaptureFixture = pytest.CaptureFixture[str]
SHORT = ["--max-new-tokens", "12", "--device", "cpu"]


def test_fp32_is_exact(tiny_folder: Path, capsys: CaptureFixture) -> None:
    """Every token of every prompt is the plain model's own choice."""
    assert main(["check", str(tiny_folder), "--method", "recycling", *SHORT]) == 0
    out, err = capsys.readouterr()
    assert out == "recycling: 36 tokens: 36 the plain model's argmax, 0 near-ties, 0 wrong; largest margin 0\n"
    assert len(err.splitlines()) == 3


def test_faults_are_listed_and_end_with_1(
    tiny_folder: Path, tmp_path: Path, capsys: CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near-ties are no fault, another token is; the JSON holds no text."""

    def some(*_: Any) -> list[Margin]:
        return [Margin(0.0, 0.1), Margin(0.05, 0.1), Margin(0.5, 0.1)]

    (tmp_path / "p.txt").write_text("The dog\n")
    monkeypatch.setattr(judged, "margins", some)
    argv = ["check", str(tiny_folder), "--method", "none", "--prompts", str(tmp_path / "p.txt"), *SHORT]
    assert main(argv) == 1
    out = capsys.readouterr().out
    assert "prompt 1, token 2: margin 0.05 (rounding explains 0.1): near-tie\n" in out
    assert "prompt 1, token 3: margin 0.5 (rounding explains 0.1): WRONG\n" in out
    assert main([*argv, "--json"]) == 1
    text = capsys.readouterr().out
    found = json.loads(text)
    assert (found["tokens"], found["near_ties"], found["wrong"], len(found["places"])) == (3, 1, 1, 2)
    assert "dog" not in text


def test_a_prompt_that_does_not_fit(tiny_folder: Path, tmp_path: Path, capsys: CaptureFixture) -> None:
    """It is named by its number."""
    (tmp_path / "p.txt").write_text("The dog\n" + "The dog " * 60)
    assert main(["check", str(tiny_folder), "--prompts", str(tmp_path / "p.txt"), *SHORT]) == 2
    assert "prompt 2: the prompt has" in capsys.readouterr().err
