"""The target's layers that a checkpoint's head reads, given in one of two conventions used by public configs.

A boundary b is the input of layer b, i.e. the output of layer b - 1 (EAGLE's authors, speculators, vLLM); a layer i
means its output, boundary i + 1 (SGLang, SpecForge, DeepSpec, z-lab). Both are written under the same names. Layers
that are off by one cause no error: the head drafts, but almost nothing is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint
from speculant.drafters.heads.checkpoints.fitting import check_taps
from speculant.drafters.heads.head import TargetParts

KEY = "eagle_aux_hidden_state_layer_ids"
_BOUNDARY_WRITER = "use_input_layernorm_in_first_layer"  # a key of nvidia's configs, which give boundaries


def from_boundaries(checkpoint: Checkpoint, target: TargetParts, boundaries: Sequence[Any]) -> tuple[int, ...]:
    """Return the layers, from 0, whose outputs are the given boundaries.

    Raises:
        UnsupportedError: the target has no such layers, or one is given twice.
    """
    return from_layers(checkpoint, target, [int(boundary) - 1 for boundary in boundaries])


def from_layers(checkpoint: Checkpoint, target: TargetParts, layers: Sequence[Any]) -> tuple[int, ...]:
    """Return the layers, from 0, after checking them; raises the same errors as `from_boundaries`."""
    taps = tuple(int(layer) for layer in layers)
    if min(taps) < 0:
        raise UnsupportedError(
            f"the head in {checkpoint.source} reads the target's embeddings as a hidden state (boundary 0), which "
            "is not supported; only outputs of decoder layers are."
        )
    check_taps(checkpoint, target, taps)
    return taps


def default_boundaries(layers: int) -> list[int]:
    """Return the boundaries that EAGLE-3 reads in a target with `layers` layers if its config gives none."""
    return [2, layers // 2, layers - 3]


def default_taps(checkpoint: Checkpoint, target: TargetParts) -> tuple[int, ...]:
    """Return the layers that EAGLE-3 reads if its config gives none.

    Raises:
        UnsupportedError: the target is so small that they are not three different layers.
    """
    found = default_boundaries(target.layers)
    if not 0 < found[0] < found[1] < found[2]:
        raise UnsupportedError(
            f"config.json of the head in {checkpoint.source} names no layers, and EAGLE-3's default ones, boundaries "
            f"{', '.join(map(str, found))} of a target with {target.layers} layers, are not three distinct ones in "
            f'order. Add the boundaries it was trained with, as in "{KEY}": [2, 4, 5].'
        )
    return from_boundaries(checkpoint, target, found)


def native_taps(checkpoint: Checkpoint, target: TargetParts) -> tuple[int, ...]:
    """Return the layers that a head in the authors', SpecForge's or DeepSpec's layout reads.

    The top level of the config gives boundaries, as vLLM reads it. `eagle_config`, which vLLM and SGLang read
    differently, gives layers, as in SGLang and SpecForge, unless it was written by nvidia's tools or contains the
    default boundaries.

    Raises:
        UnsupportedError: the target has no such layers, or the default ones are not different.
    """
    config, nested = checkpoint.config, dict(checkpoint.config.get("eagle_config") or {})
    if layers := config.get("target_layer_ids"):  # DeepSpec
        return from_layers(checkpoint, target, layers)
    if boundaries := config.get(KEY):
        return from_boundaries(checkpoint, target, boundaries)
    if not (ids := nested.get(KEY)):
        return default_taps(checkpoint, target)
    defaults = default_boundaries(target.layers)
    if list(ids) != [boundary - 1 for boundary in defaults] and (list(ids) == defaults or _BOUNDARY_WRITER in nested):
        return from_boundaries(checkpoint, target, ids)
    return from_layers(checkpoint, target, ids)
