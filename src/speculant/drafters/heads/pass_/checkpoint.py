"""Checkpoints of PaSS: `look_ahead` [L, D], in a layout of this library, since no other program writes any."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file

from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint, load_weights
from speculant.drafters.heads.checkpoints.fitting import check_hidden_size, check_vocabulary
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.pass_.head import PaSSHead


def matches(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is in the layout of PaSS."""
    return "look_ahead" in checkpoint.tensors


def load(checkpoint: Checkpoint, target: TargetParts) -> PaSSHead:
    """Return the head; raises the same errors as `load_head`."""
    count, size = checkpoint.tensors["look_ahead"].shape
    check_hidden_size(checkpoint, target, size)
    check_vocabulary(checkpoint, target, int(checkpoint.value("vocab_size")))
    head = PaSSHead(count, size, vocabulary=target.vocabulary)
    load_weights(head, checkpoint, checkpoint.tensors)
    return head


def save(head: PaSSHead, folder: Path, target: TargetParts) -> None:
    """Write a head's config and weights into a folder."""
    count, size = head.look_ahead.shape
    config = {"architectures": ["LookaheadEmbeddings"], "hidden_size": size, "vocab_size": target.vocabulary}
    (folder / "config.json").write_text(json.dumps(config | {"num_lookahead_tokens": count}, indent=2) + "\n", "utf-8")
    save_file({"look_ahead": head.look_ahead.detach().contiguous()}, folder / "model.safetensors")
