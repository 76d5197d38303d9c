"""Names of a checkpoint's tensors in the model: the same, unless the class has renamed its modules since."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from speculant.engines.hf.quantized.parts import named_floats


def match_names(model: nn.Module) -> Callable[[str], str]:
    """Return what gives a parameter's name in a model for its name in a checkpoint.

    Args:
        model: of the checkpoint's config, none of its weights packed yet.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    renamings = [each for each in get_model_conversion_mapping(model) if isinstance(each, WeightRenaming)]
    prefix: Any = model.base_model_prefix
    places = {name: True for name, _ in named_floats(model)}

    def rename(name: str) -> str:
        return name if name in places else str(rename_source_key(name, renamings, [], prefix, places)[0])

    return rename
