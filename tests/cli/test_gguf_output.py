"""`speculant gguf`: what is refused before a model is loaded, and a file that is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from ggufs import needs_llamacpp
from speculant.api import gguf
from speculant.api.gguf_format import check_gguf_format
from speculant.cli.main import main
from speculant.core import packages
from speculant.core.errors import UnsupportedError

CaptureFixture = pytest.CaptureFixture[str]


@pytest.fixture
def nothing_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a model is loaded."""

    def load_model(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(gguf, "load_model", load_model)


def test_outputs_are_checked_first(tmp_path: Path, capsys: CaptureFixture, nothing_loads: None) -> None:
    """Guards a user's files, and minutes of conversion for a name that no command would recognise."""
    for name, content, reason in [
        ("model.bin", None, "does not end in .gguf"),
        ("notes.gguf", b"not a model", "is not a GGUF file"),
        ("earlier.gguf", b"GGUF....", "add --force"),
        ("nowhere/model.gguf", None, "there is no folder"),
    ]:
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        assert main(["gguf", "-o", str(path)]) != 0
        assert reason in capsys.readouterr().err
    assert (tmp_path / "notes.gguf").read_bytes() == b"not a model"


def test_models_and_formats_are_checked_first(tmp_path: Path, capsys: CaptureFixture, nothing_loads: None) -> None:
    """A missing folder, a GGUF file and an unknown format are named at once."""
    out = str(tmp_path / "m.gguf")
    assert main(["gguf", str(tmp_path / "missing"), "-o", out]) == 1
    assert "the folder does not exist" in capsys.readouterr().err
    assert main(["gguf", "other.gguf", "-o", out]) == 2
    assert "is already a GGUF file" in capsys.readouterr().err
    assert main(["gguf", "-o", out, "--format", "q9"]) == 2
    assert "weights are written as f32, f16" in capsys.readouterr().err


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quantising needs llama.cpp itself, plain formats only the package that writes files."""
    monkeypatch.setattr(packages, "find_spec", lambda name: None if name == "llama_cpp" else name)
    check_gguf_format(None)
    check_gguf_format("bf16")
    with pytest.raises(UnsupportedError, match=r"llama_cpp is not installed, .* pip install 'speculant\[llamacpp\]'"):
        check_gguf_format("q8_0")


def test_the_bundled_model_in_plain_weights(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Half as large in bfloat16, replaced only when that is allowed, and nothing else is left in the folder."""
    pytest.importorskip("gguf")
    sizes = {}
    for format_ in ("f32", "bf16"):
        path = tmp_path / "model.gguf"
        assert main(["gguf", "bundled", "-o", str(path), "--format", format_, "--force"]) == 0
        sizes[format_] = path.stat().st_size
        assert path.read_bytes()[:4] == b"GGUF"
    assert 0.5 < sizes["bf16"] / sizes["f32"] < 0.6
    assert [each.name for each in tmp_path.iterdir()] == ["model.gguf"]
    assert f"speculant generate PROMPT --model {path}" in capsys.readouterr().out


@pytest.mark.peers
def test_a_quantised_model_runs(tmp_path: Path, capsys: CaptureFixture) -> None:
    """llama.cpp runs what it has quantised."""
    needs_llamacpp()
    path = str(tmp_path / "model.gguf")
    assert main(["gguf", "-o", path, "--format", "q8_0"]) == 0
    assert main(["generate", "Once upon a time", "--model", path, "--max-new-tokens", "8", "--threads", "1"]) == 0
    assert "little" in capsys.readouterr().out
