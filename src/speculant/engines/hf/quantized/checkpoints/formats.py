"""The formats of quantised checkpoints that are read packed, by the name that a config has for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from speculant.engines.hf.quantized.checkpoints.awq import read_awq
from speculant.engines.hf.quantized.checkpoints.compressed_tensors import is_readable, read_compressed_tensors
from speculant.engines.hf.quantized.checkpoints.gptq import read_gptq
from speculant.engines.hf.quantized.checkpoints.matrix import Reader
from speculant.engines.hf.quantized.checkpoints.torchao import read_torchao


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFormat:
    """A format.

    Attributes:
        name: the `quant_method` of its configs.
        read: yields its matrices.
        takes: whether a checkpoint with these settings is one for the reader; others are left to
            transformers. None for all.
    """

    name: str
    read: Reader
    takes: Callable[[Mapping[str, Any]], bool] | None = None


FORMATS = {
    each.name: each
    for each in (
        CheckpointFormat(name="gptq", read=read_gptq),
        CheckpointFormat(name="awq", read=read_awq),
        CheckpointFormat(name="compressed-tensors", read=read_compressed_tensors, takes=is_readable),
        CheckpointFormat(name="torchao", read=read_torchao),
    )
}


def quantization_settings(config: Any) -> dict[str, Any] | None:
    """Return the `quantization_config` of a model's config; None where its weights are floats."""
    found = getattr(config, "quantization_config", None)
    if found is None:
        found = getattr(config.get_text_config(decoder=True), "quantization_config", None)
    if found is None or isinstance(found, Mapping):
        return None if found is None else dict(found)
    return dict(found.to_dict())


def find_format(settings: Mapping[str, Any]) -> CheckpointFormat | None:
    """Return the format of a checkpoint by its settings; None where it is left to transformers."""
    found = FORMATS.get(str(settings.get("quant_method")))
    return None if found is None or (found.takes is not None and not found.takes(settings)) else found
