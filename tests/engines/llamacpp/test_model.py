"""GGUF files that can be decoded are loaded; others are refused with the reason."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from ggufs import bundled_gguf, needs_llamacpp, open_engine, tiny_gguf
from speculant.core.errors import (
    ModelError,
    ModelNotFoundError,
    OutOfMemoryError,
    UnsupportedError,
    UsageError,
)
from speculant.engines.llamacpp.file import is_gguf
from speculant.engines.llamacpp.options import LlamaCppOptions
from speculant.engines.llamacpp.quantize import quantize

pytestmark = pytest.mark.peers


def test_files_are_known_by_their_header(tmp_path: Path) -> None:
    """A GGUF file is one by its name or by its first bytes."""
    (tmp_path / "model").write_bytes(b"GGUF\x03")
    (tmp_path / "other").write_bytes(b"PK")
    assert is_gguf(tmp_path / "model")
    assert is_gguf("missing.GGUF")
    assert not is_gguf(tmp_path / "other")
    assert not is_gguf(tmp_path)


def test_no_model(tmp_path: Path) -> None:
    """A missing file, a folder and another kind of file each get their own message."""
    (tmp_path / "m.gguf").write_bytes(pickle.dumps(1))
    for path, error, said in (
        (tmp_path / "missing.gguf", ModelNotFoundError, "does not exist"),
        (tmp_path, ModelNotFoundError, "is a folder"),
        (tmp_path / "m.gguf", ModelError, "not a GGUF file"),
    ):
        needs_llamacpp()
        with pytest.raises(error, match=said):
            open_engine(path)


def test_a_truncated_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The reason is llama.cpp's, which prints nothing itself."""
    whole = tiny_gguf().read_bytes()
    for size in (64, len(whole) // 2):
        (tmp_path / "m.gguf").write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"cannot be loaded: .*may be truncated"):
            open_engine(tmp_path / "m.gguf")
    assert capfd.readouterr() == ("", "")


def test_models_that_do_not_decode_token_by_token_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against diffusion models, whose texts would be nonsense."""
    from speculant.engines.llamacpp.library import load_library

    path = tiny_gguf()
    monkeypatch.setattr(load_library().api, "llama_model_is_diffusion", lambda _: True)
    with pytest.raises(UnsupportedError, match=r"architecture 'llama'.* is a diffusion model"):
        open_engine(path)


def test_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model and a cache that do not fit are told apart from damaged files."""
    from speculant.engines.llamacpp.library import load_library

    path = tiny_gguf()
    library = load_library()

    def fail(*_: Any) -> None:
        library.log.add(3, b"failed to allocate buffer of size 7")

    monkeypatch.setattr(library.api, "llama_init_from_model", fail)
    with pytest.raises(OutOfMemoryError, match="no room for a cache of 256 tokens in f32"):
        open_engine(path)
    monkeypatch.setattr(library.api, "llama_model_load_from_file", fail)
    with pytest.raises(OutOfMemoryError, match="failed to allocate"):
        open_engine(path)


def test_options() -> None:
    """Values that make no sense, or that this llama.cpp or model cannot honour, are refused."""
    for options, said in (
        ({"threads": 0}, "threads must be"),
        ({"context": True}, "context must be"),
        ({"sequences": 300}, "at most 256"),
        ({"cache_type": "int8"}, "one of f32"),
        ({"flash_attention": "auto"}, "True, False or None"),
    ):
        with pytest.raises(UsageError, match=said):
            LlamaCppOptions(**options)  # type: ignore[arg-type]
    path = tiny_gguf()
    with pytest.raises(UsageError, match=r"context is 257, but the model has 256"):
        open_engine(path, context=257)
    with pytest.raises(UnsupportedError, match="runs on CPUs only"):
        open_engine(path, gpu_layers=1)
    with pytest.raises(UnsupportedError, match="cache_type=q8_0 and flash_attention=False"):
        open_engine(path, cache_type="q8_0", flash_attention=False)


def test_roundings_are_noted() -> None:
    """With the defaults nothing is noted on a CPU; a rounded cache and flash attention are."""
    assert open_engine(tiny_gguf()).notes == ()
    assert (
        "rounded to f16 and flash attention"
        in open_engine(tiny_gguf(), cache_type="f16", flash_attention=True).notes[0]
    )


def test_formats(tmp_path: Path) -> None:
    """Weights are what was asked for; other formats and targets are refused."""
    assert open_engine(bundled_gguf("q8_0")).model.dtype == "q8_0"
    assert open_engine(bundled_gguf("bf16")).model.dtype == "bf16"
    with pytest.raises(UnsupportedError, match="not 'int3'"):
        quantize(bundled_gguf(), tmp_path / "m.gguf", "int3")
    assert list(tmp_path.iterdir()) == []
