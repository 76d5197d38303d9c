"""Quantises a model into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from speculant.api.loading import find_model, load_config, load_tokenizer
from speculant.core.errors import FileError

if TYPE_CHECKING:
    from speculant.engines.hf.quantized.summary import QuantizedSummary


def quantize_model(
    name: str | None, folder: str | Path, *, scheme: Literal["int8", "int4"] | None = None, sample: str | None = None
) -> QuantizedSummary:
    """Write a model with quantised weights, which `Speculator.from_pretrained` loads like any other, on CPUs.

    Args:
        name: a folder or a hub id; None or "bundled" for the bundled model.
        folder: a new folder for config, tokenizer and packed weights.
        scheme: "int8" or "int4"; None for int8, or for the existing format of a quantised checkpoint.
        sample: text on which the loss is measured; None for a built-in one.

    Returns:
        A summary of what was quantised, and the loss.

    Raises:
        ModelNotFoundError: there is no such model, or it is damaged.
        UnsupportedError: it cannot be quantised, or it already is and a scheme is given.
        FileError: the folder exists, or cannot be written.
    """
    if Path(folder).exists():
        raise FileError(f"{folder} exists and is not overwritten. Name a new folder.")
    source = find_model(name)
    load_config(source)  # raises its errors before the long work
    from transformers import AutoConfig

    from speculant.engines.hf.loading import auto_class
    from speculant.engines.hf.quantized.checkpoints.formats import quantization_settings
    from speculant.engines.hf.quantized.folder import write_folder
    from speculant.engines.hf.quantized.making import QuantizeRequest

    floats = quantization_settings(AutoConfig.from_pretrained(source)) is None
    asked = QuantizeRequest(
        source=source,
        kind=auto_class(source),
        scheme=scheme or ("int8" if floats else None),
        tokenizer=load_tokenizer(source, required=False),
        sample=sample,
    )
    return write_folder(asked, Path(folder))
