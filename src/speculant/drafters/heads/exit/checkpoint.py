"""Checkpoints of Kangaroo's adapters, as their authors publish them (Equationliu/Kangaroo).

`config.json` is a Llama config with one layer; the weights are a norm, and attention with a norm before it. The exit
layer is given only in the authors' scripts: after 2 layers of Vicuna-7B and 3 of Vicuna-13B. Checkpoints saved here
contain it as `exit_layer`.
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
from speculant.drafters.heads.exit.head import ExitHead
from speculant.drafters.heads.head import TargetParts

_AUTHORS = {32: 2, 40: 3}  # number of the target's layers, and of those before the exit
_LAYER = "layers.0."


def matches(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is one of these: attention between two norms, and nothing else."""
    names = {name for name in checkpoint.tensors if not name.endswith("inv_freq")}
    needed = {"norm.weight", f"{_LAYER}input_layernorm.weight", f"{_LAYER}self_attn.q_proj.weight"}
    allowed = ("norm.weight", ".input_layernorm.weight")
    return (
        "speculators_model_type" not in checkpoint.config
        and needed <= names
        and all(name.endswith(allowed) or ".self_attn." in name for name in names)
    )


def load(checkpoint: Checkpoint, target: TargetParts) -> ExitHead:
    """Return the head; errors as in `load_head`."""
    if any(name.startswith("layers.") and not name.startswith(_LAYER) for name in checkpoint.tensors):
        raise UnsupportedError(f"the adapter in {checkpoint.source} has several layers; only one is supported.")
    check_hidden_size(checkpoint, target, checkpoint.tensors["norm.weight"].shape[0])
    check_vocabulary(checkpoint, target, int(checkpoint.config.get("vocab_size") or target.vocabulary))
    exit_layer = int(checkpoint.config.get("exit_layer") or _AUTHORS.get(target.layers, 0))
    if not exit_layer:
        raise UnsupportedError(
            f"config.json of the adapter in {checkpoint.source} does not say after how many layers of the target it "
            'was trained. Add it as "exit_layer".'
        )
    if not 1 <= exit_layer < target.layers:
        raise UnsupportedError(
            f"the adapter in {checkpoint.source} exits after {exit_layer} layers, but the target has {target.layers}: "
            "it was trained for another model. Name the target it was trained for."
        )
    head = ExitHead(layer_shape(checkpoint, target), exit_layer=exit_layer)
    load_weights(head, checkpoint, {k: v for k, v in checkpoint.tensors.items() if not k.endswith("inv_freq")})
    return head


def save(head: ExitHead, folder: Path, target: TargetParts) -> None:
    """Write a head's config and weights to a folder."""
    config = shape_config(head.shape, target) | {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 1,
        "exit_layer": head.exit_layer,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    save_file({name: tensor.contiguous() for name, tensor in head.state_dict().items()}, folder / "model.safetensors")
