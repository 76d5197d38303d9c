"""GGUF files on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ggufs import bundled_gguf
from speculant.cli.main import main

pytestmark = pytest.mark.peers


def test_generate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A file is found by its suffix; the record says what ran."""
    model, record = str(bundled_gguf("q8_0")), str(tmp_path / "r.json")
    argv = ["generate", "Once upon a time", "--model", model, "--max-new-tokens", "8", "--threads", "1"]
    assert main([*argv, "--engine", "llamacpp", "--json", record]) == 0
    assert "little" in capsys.readouterr().out
    found = json.loads(Path(record).read_text())
    assert found["environment"]["dtype"] == "q8_0"


def test_compare_and_check(capsys: pytest.CaptureFixture[str]) -> None:
    """Plain decoding by llama.cpp is what drafts are compared with."""
    model = str(bundled_gguf())
    argv = ["--model", model, "--max-new-tokens", "8", "--threads", "1", "--engine", "llamacpp"]
    assert main(["generate", "Once upon a time", "--compare", *argv]) == 0
    assert "identical   yes, to plain decoding" in capsys.readouterr().err
    assert main(["check", *argv]) == 0
    assert "0 wrong" in capsys.readouterr().out


@pytest.mark.parametrize("option", [["--dtype", "float32"], ["--attn", "eager"], ["--fast"], ["--activations", "int8"]])
def test_options_of_speculants_own_passes(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With llama.cpp's they are refused before anything is loaded."""
    assert main(["generate", "a", "--model", "missing.gguf", "--engine", "llamacpp", *option]) == 2
    assert f"{option[0]} is for Speculant's own passes" in capsys.readouterr().err


def test_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    """GGUF files are not put on devices."""
    assert main(["generate", "a", "--model", "missing.gguf", "--device", "mps"]) == 2
    assert "--device does not apply to a GGUF file" in capsys.readouterr().err


def test_other_commands(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """llama.cpp has no `generate` of transformers to compare with; missing files are named."""
    assert main(["generate", "a", "--model", str(tmp_path / "missing.gguf")]) != 0
    assert "does not exist" in capsys.readouterr().err
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"prompt_ids": [1, 5, 6, 5], "output_ids": [6, 5, 6, 5, 6]}\n')
    argv = ["bench", str(bundled_gguf()), "--forced", str(trace), "--out", str(tmp_path / "out")]
    argv += ["--engine", "llamacpp"]
    assert main([*argv, "--methods", "none,hf:generate"]) == 2
    assert "hf:generate needs a model of transformers" in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_bench(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A GGUF file is benchmarked as a model is, along recorded outputs."""
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"prompt_ids": [1, 5, 6, 5], "output_ids": [6, 5, 6, 5, 6]}\n')
    argv = ["bench", "--forced", str(trace), "--methods", "none,mix", "--out", str(tmp_path / "out")]
    assert main([*argv, str(bundled_gguf("q8_0")), "--threads", "1", "--engine", "llamacpp"]) == 0
    settings = json.loads((tmp_path / "out" / "result.json").read_text())["settings"]
    assert settings["dtype"] == "q8_0"
    assert settings["attention"] == "llama.cpp's"


def test_speculants_own_passes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Which passes run and what memory they take is said before loading; what is checked is said behind it."""
    model, record = str(bundled_gguf("q8_0")), str(tmp_path / "r.json")
    argv = ["--model", model, "--max-new-tokens", "8", "--threads", "1", "--engine", "speculant"]
    assert main(["generate", "Once upon a time", *argv, "--compare", "--json", record]) == 0
    said = capsys.readouterr()
    assert "decoding with Speculant's own passes" in said.err
    assert "MB for packed weights" in said.err
    assert "identical   yes, to plain decoding\n" in said.err
    assert set(json.loads(Path(record).read_text())["environment"]["weights"]) == {"Q8_0", "F32"}
    assert main(["check", *argv]) == 0
    out = capsys.readouterr().out
    assert "0 wrong" in out
    assert "lossless against the same quantised weights without drafts" in out
    assert main(["check", *argv, "--json", "--activations", "float"]) == 0
    assert json.loads(capsys.readouterr().out)["against"] == "against the same quantised weights without drafts"


@pytest.mark.usefixtures("undrawn")
def test_commands_that_need_layers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Heads are reported on quantised weights, and a draft model may be a GGUF file; llama.cpp is refused there."""
    model = str(bundled_gguf("q8_0"))
    argv = ["--threads", "1", "--max-new-tokens", "8"]
    assert main(["check", model, "--head", "bundled", *argv]) == 0
    assert main(["check", model, "--head", "bundled", *argv, "--engine", "llamacpp"]) == 2
    assert "trained heads read hidden states of decoder layers" in capsys.readouterr().err
    assert main(["generate", "Once", "--model", model, "--draft-model", model, "--method", "draft-model", *argv]) == 0
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"prompt_ids": [1, 5, 6, 5], "output_ids": [6, 5, 6, 5, 6]}\n')
    bench = ["bench", model, "--forced", str(trace), "--out", str(tmp_path / "out"), "--engine", "speculant"]
    assert main([*bench, "--methods", "none,mix,hf:generate", "--threads", "1"]) == 0


def test_options_of_gguf_files(capsys: pytest.CaptureFixture[str]) -> None:
    """They are refused for other models."""
    assert main(["generate", "a", "--engine", "llamacpp"]) == 2
    assert "--engine llamacpp is for GGUF files" in capsys.readouterr().err
    assert main(["generate", "a", "--activations", "int8"]) == 2
    assert "activations would be ignored" in capsys.readouterr().err
    assert main(["generate", "a", "--model", str(bundled_gguf()), "--quantize", "int8"]) == 2
    assert "--quantize does not apply to a GGUF file" in capsys.readouterr().err
