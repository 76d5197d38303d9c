"""Converts a transformers model to a GGUF file for llama.cpp, optionally quantised."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from speculant.api.gguf_format import PLAIN, check_gguf_format
from speculant.api.loading import load_model
from speculant.core.errors import FileError
from speculant.engines.llamacpp.gguf_file import check_architecture, write_gguf
from speculant.engines.llamacpp.quantize import quantize


def convert_model(name: str | None, path: Path, *, kind: str | None = None) -> None:
    """Write a model and its tokenizer as a GGUF file, all or nothing.

    Args:
        name: a folder or a hub id; None or "bundled" for the bundled model.
        path: path of the file, which is replaced. Its folder needs room for the weights twice if they are quantised.
        kind: one of `FORMATS`; None for the checkpoint's own weights.

    Raises:
        ModelNotFoundError, OutOfMemoryError: the model cannot be loaded.
        UnsupportedError: its architecture or tokenizer, or the format, is not supported.
        ModelError: llama.cpp cannot quantise it.
        FileError: there is not enough space, or the file cannot be written.
    """
    check_gguf_format(kind)
    model, tokenizer = load_model(name, dtype=PLAIN.get(kind or "", "auto"), device="cpu")
    check_architecture(model)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            written = Path(folder) / "weights.gguf"
            write_gguf(model, written, tokenizer=tokenizer)
            del model
            if kind is not None and kind not in PLAIN:
                source, written = written, Path(folder) / "quantised.gguf"
                quantize(source, written, kind)
            os.replace(written, path)
    except OSError as error:
        raise FileError(
            f"cannot write {path}: {error.strerror}. Name a folder that is writable and has room."
        ) from error
