"""Quantised models on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from speculant.cli.main import main


def test_a_model_is_written_and_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Guards the command, what it says of the loss on the user's text, and a model that is named by its folder."""
    sample, folder = tmp_path / "sample.txt", str(tmp_path / "small")
    sample.write_text("Once upon a time there was a little girl who had a red ball.")
    assert main(["quantize", "--to", folder, "--quantize", "int4", "--sample", str(sample)]) == 0
    told = capsys.readouterr()
    assert f"--model {folder}" in told.out
    assert "MB became" in told.err
    assert "KL divergence" in told.err
    argv = ["generate", "Once upon a time", "--max-new-tokens", "8", "--threads", "1"]
    assert main([*argv, "--model", folder]) == 0
    assert "little" in capsys.readouterr().out
    assert main(["quantize", "--to", folder]) == 1
    assert "not overwritten" in capsys.readouterr().err
    assert main(["quantize", "--to", f"{folder}2", "--sample", str(tmp_path / "none.txt")]) == 1
    assert "--sample" in capsys.readouterr().err


def test_a_model_is_rounded_while_it_is_loaded(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Guards --quantize of all commands: what became of the weights is said, and `check` says what it compares."""
    record = str(tmp_path / "r.json")
    argv = ["--quantize", "int8", "--no-packed-cache", "--max-new-tokens", "8", "--threads", "1"]
    assert main(["generate", "Once upon a time", *argv, "--json", record]) == 0
    assert "int8 weights: " in capsys.readouterr().err
    assert json.loads(Path(record).read_text())["environment"]
    assert main(["check", *argv]) == 0
    told = capsys.readouterr()
    assert "the same quantised weights without drafts" in told.out
    assert "0 wrong" in told.out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--quantize", "int5"], "must be int8 or int4"),
        (["--quantize", "int8", "--dtype", "float16"], "float32 or bfloat16"),
        (["--quantize", "int8", "--device", "auto"], "on CPUs"),
        (["--quantize", "int8", "--model", "missing.gguf"], "does not apply to a GGUF file"),
    ],
)
def test_what_does_not_go_together_is_refused(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards against options that are ignored."""
    assert main(["generate", "a", *argv]) == 2
    assert message in capsys.readouterr().err
