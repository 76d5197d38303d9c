"""The layers of a Gemma 4 model that its assistant reads, and the check that their keys are those it was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.assistant.layers import ReadLayer
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.target_layer import FULL, SLIDING

KINDS = (SLIDING, FULL)
_SIZES = ("head_dim", "num_key_value_heads")  # sizes that may differ between layers
_GLOBAL_HEAD_DIM = 512  # of full layers if a config leaves it out, as in transformers


def read_layers(
    checkpoint: Checkpoint, text: Mapping[str, Any], target: TargetParts, heads: int
) -> dict[str, ReadLayer]:
    """Return what an assistant reads, by kind of attention: the target's last layer that caches rows of its own.

    Args:
        checkpoint: the assistant, for messages.
        text: its `text_config`.
        target: target of the assistant.
        heads: number of query heads of the assistant.

    Raises:
        UnsupportedError: the target has no such layer, or its keys have another shape or rotation.
    """
    config: Any = target.config
    held: dict[str, Any] = config.to_dict()
    own = list(config.layer_types)[: target.layers - int(getattr(config, "num_kv_shared_layers", 0) or 0)]
    found = {}
    for kind in dict.fromkeys(text["layer_types"]):
        if kind not in own:
            raise _other(checkpoint, f"reads keys of {kind}, but the target has no such layer with keys of its own")
        layer = len(own) - 1 - own[::-1].index(kind)
        mine, theirs = _sizes(checkpoint, text, text["layer_types"].index(kind)), _sizes(checkpoint, held, layer)
        if mine != theirs or heads % theirs[1]:
            raise _other(
                checkpoint,
                f"has {heads} queries for {mine[1]} keys of size {mine[0]} in {kind}, but the target caches "
                f"{theirs[1]} of size {theirs[0]}",
            )
        positions = int(text.get("max_position_embeddings") or target.positions or 2048)
        frequencies, scale = target.frequencies(_rope(checkpoint, text, kind), mine[0], positions)
        rotated, scaled = target.frequencies(_rope(checkpoint, held, kind), mine[0], positions)
        if scale != scaled or not torch.allclose(frequencies, rotated):
            raise _other(checkpoint, f"rotates queries of {kind} differently from the target's keys")
        window = int(Checkpoint(checkpoint.source, text, {}).value("sliding_window")) if kind == SLIDING else None
        found[kind] = ReadLayer(
            layer=layer,
            kv_heads=theirs[1],
            head_dim=theirs[0],
            frequencies=frequencies,
            scale=scale,
            window=window,
        )
    return found


def _sizes(checkpoint: Checkpoint, config: Mapping[str, Any], layer: int) -> tuple[int, int]:
    """Return the size and the number of a layer's keys, from either of the forms that configs use."""
    head_dim, kv_heads = (config.get(name) for name in _SIZES)
    if isinstance(by_layer := config.get("per_layer_config"), Mapping):
        own = dict(by_layer.get(str(layer)) or by_layer.get(layer) or {})
        head_dim, kv_heads = (own.pop(name, each) for name, each in zip(_SIZES, (head_dim, kv_heads), strict=True))
        if own:
            raise UnsupportedError(
                f"config.json of the head in {checkpoint.source} or of its target sets {', '.join(own)} for a single "
                "layer, which is not supported."
            )
    elif config["layer_types"][layer] == FULL:
        head_dim = config.get("global_head_dim", _GLOBAL_HEAD_DIM)
        if config.get("attention_k_eq_v"):
            kv_heads = config.get("num_global_key_value_heads") or kv_heads
    if not head_dim or not kv_heads:
        raise UnsupportedError(
            f"config.json of the head in {checkpoint.source} or of its target lacks the size or the number of keys "
            "(head_dim, num_key_value_heads)."
        )
    return int(head_dim), int(kv_heads)


def _rope(checkpoint: Checkpoint, config: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found = (config.get("rope_parameters") or {}).get(kind)
    if not isinstance(found, Mapping) or "rope_theta" not in found:
        raise UnsupportedError(
            f"config.json of the head in {checkpoint.source} or of its target has no rope_parameters for {kind}."
        )
    return found


def _other(checkpoint: Checkpoint, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"the head in {checkpoint.source} {what}: it was trained for another model. Name the target it was trained for."
    )
