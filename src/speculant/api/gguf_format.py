"""Formats of the weights in a GGUF file, and checks that they can be written; used before PyTorch is imported."""

from __future__ import annotations

from speculant.core.errors import UnsupportedError
from speculant.core.packages import check_packages
from speculant.engines.llamacpp.quantize import FORMATS

PLAIN = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}  # those of FORMATS that are torch dtypes


def check_gguf_format(kind: str | None) -> None:
    """Check before a model is loaded that a format can be written here.

    Args:
        kind: one of `FORMATS`; None for the checkpoint's own.

    Raises:
        UnsupportedError: there is no such format, or a required package is not installed.
    """
    if kind is not None and kind not in FORMATS:
        raise UnsupportedError(f"weights are written as {', '.join(FORMATS)}, not '{kind}'.")
    needed = ["gguf"] if kind is None or kind in PLAIN else ["gguf", "llama_cpp"]
    check_packages(needed, what="writing GGUF files", extra="llamacpp")
