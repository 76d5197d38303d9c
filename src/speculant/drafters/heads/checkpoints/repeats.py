"""Weights that checkpoints store several times because their authors' program uses a module several times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor, nn


def are_equal(tensors: Mapping[str, Tensor], prefixes: Iterable[str], parts: Iterable[str]) -> bool:
    """Return whether all prefixes have the same weights under the names in `parts`; missing ones count as equal."""
    prefixes = list(prefixes)
    for part in parts:
        found = [tensors[prefix + part] for prefix in prefixes if prefix + part in tensors]
        if any(each.shape != found[0].shape or not each.equal(found[0]) for each in found[1:]):
            return False
    return True


def save_weights(module: nn.Module, file: Path) -> None:
    """Write a module's weights under all their names, copied, since safetensors allows only one name per tensor."""
    tensors = module.state_dict()
    save_file({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}, file)
