"""Formats of the weights in a GGUF file, and what it takes to write them: known before PyTorch is imported."""

from __future__ import annotations

from speculant.core.errors import UnsupportedError
from speculant.core.packages import check_packages
from speculant.engines.llamacpp.quantize import FORMATS

PLAIN = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}  # of FORMATS, those that are dtypes of torch


def check_gguf_format(kind: str | None) -> None:
    """Check before a model is loaded that a format can be written here.

    Args:
        kind: of `FORMATS`; None for the checkpoint's own.

    Raises:
        UnsupportedError: there is no such format, or a package that it needs is not installed.
    """
    if kind is not None and kind not in FORMATS:
        raise UnsupportedError(f"weights are written as {', '.join(FORMATS)}, not '{kind}'.")
    needed = ["gguf"] if kind is None or kind in PLAIN else ["gguf", "llama_cpp"]
    check_packages(needed, what="writing GGUF files", extra="llamacpp")
