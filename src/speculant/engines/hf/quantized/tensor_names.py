"""Maps a checkpoint's tensor names to the model's: equal, unless the class has renamed its modules since."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from speculant.engines.hf.quantized.parts import named_floats


def match_names(model: nn.Module) -> Callable[[str], str]:
    """Return a function from a tensor's name in a checkpoint to the parameter's name in a model.

    Args:
        model: a model for the checkpoint's config, before any of its weights are packed.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    renamings = [each for each in get_model_conversion_mapping(model) if isinstance(each, WeightRenaming)]
    prefix: Any = model.base_model_prefix
    places = {name: True for name, _ in named_floats(model)}

    def rename(name: str) -> str:
        return name if name in places else str(rename_source_key(name, renamings, [], prefix, places)[0])

    return rename
