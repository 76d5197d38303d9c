"""Checkpoints of EAGLE-1, EAGLE-2 and HASS, as published by their authors (SafeAILab/EAGLE, HArmonizedSS/HASS).

`config.json` is a Llama config with one layer. "bias": false means that `fc` has no bias; "qkv_bias" means that
queries, keys and values have one (Qwen2). There is no head size, so it is D / heads. `embed_tokens.weight` is a copy of
the target's. A norm before the layer's attention, which the authors' heads lack, indicates heads trained differently.
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
from speculant.drafters.heads.eagle.head import EagleHead
from speculant.drafters.heads.head import TargetParts

_COPIES = ("embed_tokens.weight", "lm_head.weight")  # copies of the target's weights


def matches(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is one of these: one layer follows `fc` of an embedding and one hidden state."""
    fc, first = checkpoint.tensors.get("fc.weight"), checkpoint.tensors.get("layers.0.self_attn.q_proj.weight")
    return (
        "speculators_model_type" not in checkpoint.config
        and fc is not None
        and first is not None
        and fc.shape[1] == 2 * fc.shape[0]
        and first.shape[1] == fc.shape[0]
        and "hidden_norm.weight" not in checkpoint.tensors
    )


def load(checkpoint: Checkpoint, target: TargetParts) -> EagleHead:
    """Return the head; raises the same errors as `load_head`."""
    if "layers.0.input_layernorm.weight" in checkpoint.tensors:
        raise UnsupportedError(
            f"the head in {checkpoint.source} looks like EAGLE-1, but its layer has an input norm, which EAGLE's "
            "lacks: it was trained by another program with another formula, which is not supported. Train a head with "
            "`speculant train eagle`, or name one by EAGLE's authors."
        )
    check_hidden_size(checkpoint, target, checkpoint.tensors["fc.weight"].shape[0])
    check_vocabulary(checkpoint, target, int(checkpoint.config.get("vocab_size") or target.vocabulary))
    shape = layer_shape(checkpoint, target, bias=bool(checkpoint.config.get("qkv_bias", False)))
    head = EagleHead(shape, bias=bool(checkpoint.config.get("bias", True)))
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.endswith("inv_freq")}
    load_weights(head, checkpoint, tensors, ignored=_COPIES)
    return head


def save(head: EagleHead, folder: Path, target: TargetParts) -> None:
    """Write a head's config and weights into a folder."""
    config = shape_config(head.shape, target) | {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}
    config["bias"] = "fc.bias" in head.state_dict()
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    save_file({name: tensor.contiguous() for name, tensor in head.state_dict().items()}, folder / "model.safetensors")
