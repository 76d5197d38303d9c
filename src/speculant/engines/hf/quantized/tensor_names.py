"""Names of a checkpoint's tensors in the model: the same, unless the class has renamed its modules since."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from speculant.engines.hf.quantized.parts import named_floats


def match_names(model: nn.Module, tensors: Iterable[str]) -> Callable[[str], str]:
    """Return what gives a parameter's name in a model for its name in a checkpoint.

    Args:
        model: of the checkpoint's config; with as many parameters as it will have floats.
        tensors: names in the checkpoint.
    """
    known = {name for name, _ in named_floats(model)}
    if any(name in known for name in tensors if name.endswith("norm.weight")):
        return lambda name: name
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    renamings = [each for each in get_model_conversion_mapping(model) if isinstance(each, WeightRenaming)]
    prefix: Any = model.base_model_prefix
    places = dict.fromkeys(known, True)

    def rename(name: str) -> str:
        return str(rename_source_key(name, renamings, [], prefix, places)[0])

    return rename
