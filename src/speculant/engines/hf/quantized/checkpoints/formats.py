"""The quantised checkpoint formats that are read packed, by their names in configs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.quantized.checkpoints.awq import read_awq
from speculant.engines.hf.quantized.checkpoints.compressed_tensors import is_readable, read_compressed_tensors
from speculant.engines.hf.quantized.checkpoints.gptq import read_gptq
from speculant.engines.hf.quantized.checkpoints.matrix import Reader
from speculant.engines.hf.quantized.checkpoints.mxfp4 import read_mxfp4
from speculant.engines.hf.quantized.checkpoints.torchao import read_torchao

PACKED = "speculant"  # the `quant_method` of folders written by `speculant quantize`


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFormat:
    """A quantised checkpoint format.

    Attributes:
        name: the `quant_method` of its configs.
        read: yields its matrices; None for folders of `speculant quantize`, which are mapped directly.
        takes: whether the reader supports a checkpoint with these settings; others are left to transformers. None for
            all.
    """

    name: str
    read: Reader | None
    takes: Callable[[Mapping[str, Any]], bool] | None = None


FORMATS = {
    each.name: each
    for each in (
        CheckpointFormat(name=PACKED, read=None),
        CheckpointFormat(name="gptq", read=read_gptq),
        CheckpointFormat(name="awq", read=read_awq),
        CheckpointFormat(name="compressed-tensors", read=read_compressed_tensors, takes=is_readable),
        CheckpointFormat(name="torchao", read=read_torchao),
        CheckpointFormat(name="mxfp4", read=read_mxfp4),
    )
}


def quantization_settings(config: Any) -> dict[str, Any] | None:
    """Return the `quantization_config` of a model's config; None if its weights are floats."""
    found = getattr(config, "quantization_config", None)
    if found is None:
        found = getattr(config.get_text_config(decoder=True), "quantization_config", None)
    if found is None or isinstance(found, Mapping):
        return None if found is None else dict(found)
    return dict(found.to_dict())


def find_format(settings: Mapping[str, Any], device: str = "cpu") -> CheckpointFormat | None:
    """Return the format of a checkpoint by its settings; None if it is left to transformers.

    Raises:
        UnsupportedError: only CPUs support it, and the device is another.
    """
    found = FORMATS.get(str(settings.get("quant_method")))
    if found is None or (found.takes is not None and not found.takes(settings)):
        return None
    if device != "cpu" and found.read is None:
        raise UnsupportedError(f"weights packed by `speculant quantize` run on CPUs, not on {device}.")
    return found if device == "cpu" else None
