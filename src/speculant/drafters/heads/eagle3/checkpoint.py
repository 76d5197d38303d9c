"""Checkpoints of EAGLE-3 and P-EAGLE in the layout of EAGLE's authors, SpecForge and DeepSpec.

`config.json` is a Llama or Qwen3 config of the head's layers with `draft_vocab_size`, `eagle_config` and flags; the
first layer is `midlayer` (authors, SpecForge) or `layers.0` (DeepSpec, P-EAGLE). vLLM and SGLang load these files.
`norm_output` has two meanings: SpecForge's class always trains with the output before the norm fed back, and uses it
for whether there is a norm before the logits; elsewhere it means that the output after the norm is fed back (EAGLE
3.1).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint
from speculant.drafters.heads.checkpoints.draft_vocabulary import write_ids
from speculant.drafters.heads.checkpoints.fitting import shape_config
from speculant.drafters.heads.checkpoints.tapped_layers import KEY, native_taps
from speculant.drafters.heads.eagle3.head import Eagle3Head
from speculant.drafters.heads.eagle3.weights import VARIANTS, build_head, check_eagle_config, read_flags
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.p_eagle.head import PEagleHead

_SPECFORGE = "LlamaForCausalLMEagle3"


def matches(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is EAGLE-3: its first layer contains the norm of the feature."""
    return _is_native(checkpoint) and "mask_hidden" not in checkpoint.tensors


def matches_parallel(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is P-EAGLE: in addition, it has the state of mask tokens."""
    return _is_native(checkpoint) and "mask_hidden" in checkpoint.tensors


def load(checkpoint: Checkpoint, target: TargetParts) -> Eagle3Head:
    """Return the head; raises the same errors as `load_head`."""
    config = {name: value for name, value in checkpoint.config.items() if name != "eagle_config"}
    if _SPECFORGE in (config.get("architectures") or ()) and config.pop("norm_output", True) is not True:
        raise UnsupportedError(
            f"config.json of the head in {checkpoint.source} sets 'norm_output' to false, by which SpecForge means "
            "logits without a norm and vLLM the usual formula. Remove it if the head was trained by the usual formula."
        )
    inner = checkpoint.config.get("eagle_config") or {}
    check_eagle_config(checkpoint, inner)
    flags = read_flags(checkpoint, config, inner)
    tensors = {
        f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name: tensor
        for name, tensor in checkpoint.tensors.items()
    }
    renamed = Checkpoint(checkpoint.source, checkpoint.config, tensors)
    taps, depth = native_taps(checkpoint, target), int(config.get("num_depths") or 8)
    return build_head(renamed, target, config=config, flags=flags, taps=taps, depth=depth)


def save(head: Eagle3Head, folder: Path, target: TargetParts) -> None:
    """Write a head's config and weights into a folder.

    The layers it reads are written as boundaries at the top level, where vLLM reads them, and as layers in
    `eagle_config`, where SGLang does.
    """
    shape, layers = head.shape, [tap % target.layers for tap in head.taps]
    parallel = isinstance(head, PEagleHead)
    config: dict[str, Any] = shape_config(shape.layer, target) | {
        "architectures": [_architecture(head)],
        "num_hidden_layers": shape.layers,
        "attention_bias": shape.layer.bias,
        "tie_word_embeddings": False,
        "torch_dtype": str(head.fc.weight.dtype).removeprefix("torch."),
        "target_hidden_size": shape.target_hidden,
        KEY: [layer + 1 for layer in layers],
        "eagle_config": {KEY: layers, "use_aux_hidden_state": True, "norm_before_fc": shape.norm_before_fc},
    }
    config |= {name: getattr(shape, name) for name in VARIANTS if name != "norm_output" or shape.norm_output}
    if shape.own_output:
        config["draft_vocab_size"] = shape.draft_vocabulary or shape.vocabulary
    if isinstance(head, PEagleHead):
        config |= {"mask_token_id": head.mask_token, "num_depths": head.depth}
    weights = {
        name.replace("layers.0.", "midlayer.") if shape.layers == 1 and not parallel else name: tensor.contiguous()
        for name, tensor in head.state_dict().items()
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    save_file(weights | dict(write_ids(head.ids, shape.vocabulary)), folder / "model.safetensors")


def _architecture(head: Eagle3Head) -> str:
    if isinstance(head, PEagleHead):
        return "PEagleDraftModel"
    return "Eagle3LlamaForCausalLM" if head.shape.norm_output else _SPECFORGE


def _is_native(checkpoint: Checkpoint) -> bool:
    if "speculators_model_type" in checkpoint.config:
        return False
    return any(f"{layer}.hidden_norm.weight" in checkpoint.tensors for layer in ("midlayer", "layers.0"))
