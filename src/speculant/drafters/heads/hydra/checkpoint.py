"""Checkpoints of Hydra and Hydra++, as published by their authors (zankner/Hydra).

Their config has no sizes for the decoder layer of Hydra++, which has the target's. Checkpoints written here add them,
since a layer can be trained with others. Dropouts shift the indices of its blocks: `hydra_mlp.{head}.{1, 3, ...}`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from speculant.core.engine import LAST_LAYER
from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint, load_weights
from speculant.drafters.heads.checkpoints.fitting import (
    check_hidden_size,
    check_taps,
    check_vocabulary,
    layer_shape,
    shape_config,
)
from speculant.drafters.heads.checkpoints.paths import read_paths, write_paths
from speculant.drafters.heads.checkpoints.repeats import are_equal, save_weights
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.hydra.head import HydraHead, HydraShape
from speculant.drafters.heads.layers import LayerShape

_BLOCK = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.linear\.weight")
_PREFIX = "prefix_embeding_layer."
_COPIES = (f"{_PREFIX}embed_tokens.weight", f"{_PREFIX}layers.0.self_attn.rotary_emb.inv_freq")  # unused


def matches(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is Hydra's, including unsupported architectures of its authors."""
    return _is_hydra(checkpoint) and not matches_plus(checkpoint)


def matches_plus(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is Hydra++'s."""
    return _is_hydra(checkpoint) and any(name.startswith(_PREFIX) for name in checkpoint.tensors)


def load(checkpoint: Checkpoint, target: TargetParts) -> HydraHead:
    """Return the heads; raises the same errors as `load_head`."""
    tensors = checkpoint.tensors
    plus = any(name.startswith(_PREFIX) for name in tensors)
    kind = checkpoint.value("hydra_head_arch", "prefix-mlp" if plus else "mlp")
    if kind not in ("mlp", "prefix-mlp") or not checkpoint.value("grounded_heads", True):
        raise UnsupportedError(
            f"the head in {checkpoint.source} is a Hydra head of architecture {kind!r}"
            f"{'' if checkpoint.value('grounded_heads', True) else ' that reads no drafted tokens'}; "
            "'mlp' and 'prefix-mlp' heads that read them are supported."
        )
    counts = [(int(found[1]), int(found[2])) for name in tensors if (found := _BLOCK.fullmatch(name))]
    first, last = f"hydra_mlp.0.{int(plus)}.", "1." if plus else ""
    if not counts or f"{first}linear.weight" not in tensors:
        raise UnsupportedError(f"the head in {checkpoint.source} lacks {first}linear.weight: it may be truncated.")
    hidden, heads = tensors[f"{first}linear.weight"].shape[0], 1 + max(head for head, _ in counts)
    check_hidden_size(checkpoint, target, hidden)
    projection = tensors.get(f"hydra_lm_head.0.{last}weight")
    vocabulary = target.vocabulary if projection is None else len(projection)
    check_vocabulary(checkpoint, target, vocabulary)
    numbers = sorted({number for _, number in counts})
    shared = all(
        are_equal(tensors, [f"hydra_mlp.{head}.{number}." for number in numbers[1:]], ("linear.weight", "linear.bias"))
        for head in range(heads)
    )
    offset = int(checkpoint.config.get("hidden_state_offset") or 0)  # in boundaries, counted down from the last one
    layer = target.layers - 1 - offset if offset else LAST_LAYER
    check_taps(checkpoint, target, (layer,) if layer >= LAST_LAYER else (target.layers,))
    shape = HydraShape(
        hidden=hidden,
        vocabulary=vocabulary,
        heads=heads,
        blocks=(max(numbers) // 2 + 1) if plus else max(numbers) + 1,
        shared=shared,
        prefix=_prefix_shape(checkpoint, target) if plus else None,
        layer=layer,
    )
    head = HydraHead(shape)
    load_weights(head, checkpoint, tensors, ignored=_COPIES)
    head.paths = read_paths(checkpoint, "hydra_choices", head.paths, heads)
    return head


def save(head: HydraHead, folder: Path, target: TargetParts) -> None:
    """Write a head's config and weights into a folder."""
    shape = head.shape
    config: dict[str, Any] = {} if shape.prefix is None else shape_config(shape.prefix, target)
    config.pop("model_type", None)
    config |= {
        "hydra_num_heads": shape.heads,
        "hydra_num_layers": shape.blocks,
        "hydra_head_arch": "mlp" if shape.prefix is None else "prefix-mlp",
        "grounded_heads": True,
        "hidden_state_offset": 0 if shape.layer == LAST_LAYER else target.layers - 1 - shape.layer,
        "hidden_size": shape.hidden,
        "vocab_size": target.vocabulary,
        "hydra_choices": write_paths(head.paths),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    save_weights(head, folder / "hydra_lm_head.safetensors")


def _is_hydra(checkpoint: Checkpoint) -> bool:
    return "hydra_head_arch" in checkpoint.config or any(_BLOCK.fullmatch(name) for name in checkpoint.tensors)


def _prefix_shape(checkpoint: Checkpoint, target: TargetParts) -> LayerShape:
    """Return the shape of the decoder layer, from the head's config or otherwise the target's."""
    config = dict(checkpoint.config)
    if "num_attention_heads" not in config:
        read = getattr(target.config, "to_dict", None)
        config = dict(read()) if read is not None else {}
    attention = f"{_PREFIX}layers.0.self_attn."
    return layer_shape(checkpoint, target, config, bias=f"{attention}q_proj.bias" in checkpoint.tensors)
