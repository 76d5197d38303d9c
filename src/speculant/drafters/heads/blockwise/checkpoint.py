"""Checkpoints of blockwise parallel decoding. Its authors published none, so the layout is defined here.

`config.json`: model_type "blockwise_head", hidden_size D, inner_size d, num_heads k (after the root), vocab_size.
`model.safetensors`: `up.weight` [k d, D], `up.bias`, `down.weight` [k D, k d], `down.bias`, head after head.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file

from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.blockwise.head import BlockwiseHead
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint, load_weights
from speculant.drafters.heads.checkpoints.fitting import check_hidden_size, check_vocabulary
from speculant.drafters.heads.head import TargetParts

_TYPE = "blockwise_head"


def matches(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is in the blockwise layout."""
    return checkpoint.config.get("model_type") == _TYPE


def load(checkpoint: Checkpoint, target: TargetParts) -> BlockwiseHead:
    """Return the heads; raises the same errors as `load_head`."""
    hidden, heads = int(checkpoint.value("hidden_size")), int(checkpoint.value("num_heads"))
    check_hidden_size(checkpoint, target, hidden)
    check_vocabulary(checkpoint, target, int(checkpoint.value("vocab_size")))
    if heads < 1:
        raise UnsupportedError(
            f"config.json of the head in {checkpoint.source} gives {heads} heads; at least 1 is needed."
        )
    head = BlockwiseHead(hidden, int(checkpoint.value("inner_size")), heads)
    load_weights(head, checkpoint, checkpoint.tensors)
    return head


def save(head: BlockwiseHead, folder: Path, target: TargetParts) -> None:
    """Write heads into a folder."""
    config = {
        "model_type": _TYPE,
        "hidden_size": head.hidden,
        "inner_size": head.inner,
        "num_heads": head.depth,
        "vocab_size": target.vocabulary,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    save_file({name: tensor.contiguous() for name, tensor in head.state_dict().items()}, folder / "model.safetensors")
