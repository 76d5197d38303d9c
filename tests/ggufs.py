"""GGUF files for tests, made of models of transformers; where llama.cpp is not installed, tests that need them skip."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest

from models import deep_model
from speculant.api.loading import load_model


def needs_llamacpp() -> None:
    """Skip the test where llama.cpp is not installed."""
    pytest.importorskip("llama_cpp")
    pytest.importorskip("gguf")


@functools.cache
def bundled_gguf(kind: str = "f32") -> Path:
    """Return the bundled model as a GGUF file with its tokenizer, in one of `quantize.FORMATS`."""
    needs_llamacpp()
    from speculant.engines.llamacpp.gguf_file import write_gguf
    from speculant.engines.llamacpp.quantize import quantize

    path = folder() / f"stories-{kind}.gguf"
    if kind == "f32":
        model, tokenizer = load_model(None)
        write_gguf(model, path, tokenizer=tokenizer)
    else:
        quantize(bundled_gguf(), path, kind, threads=1)
    return path


@functools.cache
def tiny_gguf() -> Path:
    """Return `deep_model("llama")` as a GGUF file, without a tokenizer."""
    needs_llamacpp()
    from speculant.engines.llamacpp.gguf_file import write_gguf

    path = folder() / "tiny.gguf"
    write_gguf(deep_model("llama"), path)
    return path


def open_engine(path: Path, **options: Any) -> Any:
    """Return the engine of a file; it has one thread."""
    from speculant.engines.llamacpp.engine import LlamaEngine
    from speculant.engines.llamacpp.options import LlamaCppOptions
    from speculant.engines.llamacpp.request_model import load_gguf

    model, _ = load_gguf(path, LlamaCppOptions(**{"threads": 1} | options))
    return LlamaEngine(model, model.context)


@functools.cache
def folder() -> Path:
    """Return where files of this process are written."""
    held = tempfile.TemporaryDirectory(prefix="speculant-tests-")
    _HELD.append(held)
    return Path(held.name)


_HELD: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends
