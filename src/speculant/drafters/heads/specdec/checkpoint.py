"""Checkpoints of SpecDec's drafter, in a layout of this library; the authors' are encoder-decoders in fairseq's layout.

`config.json` is a Llama config with `encoder_layers`, `decoder_layers`, `block_size` and, for encoder-decoder targets,
`source_size`, the size of the encoder's states; the mask is the last token of `embed_tokens`.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file

from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint, load_weights
from speculant.drafters.heads.checkpoints.fitting import check_vocabulary, layer_shape, shape_config
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.specdec.head import SpecDecHead


def matches(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is in the layout of SpecDec."""
    return "encoder_norm.weight" in checkpoint.tensors


def load(checkpoint: Checkpoint, target: TargetParts) -> SpecDecHead:
    """Return the head; raises the same errors as `load_head`."""
    if "lm_head.weight" in checkpoint.tensors:
        check_vocabulary(checkpoint, target, checkpoint.tensors["lm_head.weight"].shape[0])
    source = int(checkpoint.config.get("source_size") or 0)
    _check_source(checkpoint, target, source)
    head = SpecDecHead(
        layer_shape(checkpoint, target, norms="encoder.0.self_attn.q_norm.weight" in checkpoint.tensors),
        vocabulary=target.vocabulary,
        encoder=int(checkpoint.value("encoder_layers")),
        decoder=int(checkpoint.value("decoder_layers")),
        block=int(checkpoint.value("block_size")),
        source=source,
    )
    load_weights(head, checkpoint, checkpoint.tensors)
    return head


def _check_source(checkpoint: Checkpoint, target: TargetParts, source: int) -> None:
    """Check that a head reads encoder states of the target's size.

    Raises:
        UnsupportedError: it reads others, or the target has an encoder and the head does not read it.
    """
    if source == target.source_size:
        return
    sizes = source, target.source_size
    reads, has = (f"encoder states of size {size}" if size else "no encoder states" for size in sizes)
    raise UnsupportedError(
        f"the head in {checkpoint.source} reads {reads}, but the target has {has}: it was trained for another model. "
        "Name the target it was trained for."
    )


def save(head: SpecDecHead, folder: Path, target: TargetParts) -> None:
    """Write a head's config and weights into a folder."""
    config = shape_config(head.shape, target) | {
        "architectures": ["SpecDecDrafter"],
        "encoder_layers": len(head.encoder),
        "decoder_layers": len(head.decoder),
        "block_size": head.depth,
        "source_size": head.source,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    save_file({name: tensor.contiguous() for name, tensor in head.state_dict().items()}, folder / "model.safetensors")
