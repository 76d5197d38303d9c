"""Checkpoints of GLIDE in its authors' layout: a Llama with one layer, with `cross_attn`, and `large_*` in its config.

`large_hidden_size`, `large_num_attention_heads` and `block_size` describe the target. The authors' code rotates queries
of the cross-attention with base 10,000, as in its targets; here the target's own rotary embedding is used.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file

from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint, load_weights
from speculant.drafters.heads.checkpoints.fitting import (
    check_hidden_size,
    check_vocabulary,
    layer_shape,
    shape_config,
)
from speculant.drafters.heads.glide.cross import target_cross_shape
from speculant.drafters.heads.glide.head import GlideHead
from speculant.drafters.heads.head import TargetParts

_PREFIX = "model."


def matches(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is in GLIDE's layout."""
    return "large_hidden_size" in checkpoint.config and any(".cross_attn." in name for name in checkpoint.tensors)


def load(checkpoint: Checkpoint, target: TargetParts) -> GlideHead:
    """Return the head; raises the same errors as `load_head`."""
    tensors = {
        name.removeprefix(_PREFIX): tensor
        for name, tensor in checkpoint.tensors.items()
        if not name.endswith(("rotary_emb.inv_freq", "cos_cached", "sin_cached"))
    }
    if checkpoint.config.get("use_remap"):
        raise UnsupportedError(f"the head in {checkpoint.source} maps tokens (use_remap), which is not supported.")
    layers = {name.split(".")[1] for name in tensors if name.startswith("layers.")}
    if layers != {"0"}:
        raise UnsupportedError(
            f"the head in {checkpoint.source} has {len(layers)} layers; only GLIDE heads of one are supported, since "
            "the keys of deeper ones would depend on where earlier drafts began."
        )
    check_hidden_size(checkpoint, target, int(checkpoint.value("large_hidden_size")))
    cross = target_cross_shape(target, block=int(checkpoint.config.get("block_size") or 5))
    heads = int(checkpoint.value("large_num_attention_heads"))
    if heads != cross.heads:
        raise UnsupportedError(
            f"the head in {checkpoint.source} reads keys of {heads} attention heads, but the target has "
            f"{cross.heads}: it was trained for another model. Name the target it was trained for."
        )
    if "embed_tokens.weight" in tensors:
        check_vocabulary(checkpoint, target, tensors["embed_tokens.weight"].shape[0])
    shape = layer_shape(checkpoint, target, norms="layers.0.self_attn.q_norm.weight" in tensors)
    head = GlideHead(shape, cross, vocabulary=target.vocabulary)
    load_weights(head, checkpoint, tensors)
    return head


def save(head: GlideHead, folder: Path, target: TargetParts) -> None:
    """Write a head's config and weights into a folder."""
    config = shape_config(head.shape, target) | {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 1,
        "large_hidden_size": target.hidden_size,
        "large_num_attention_heads": head.cross.heads,
        "large_head_dim": head.cross.head_dim,
        "block_size": head.cross.block,
    }
    tensors = {
        (name if name.startswith("lm_head.") else _PREFIX + name): tensor.contiguous()
        for name, tensor in head.state_dict().items()
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    save_file(tensors, folder / "model.safetensors")
