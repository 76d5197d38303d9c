"""Checkpoints of DFlash and DSpark: z-lab's, transformers' own, DeepSpec's, and those that `speculators` writes.

| layout | config | layers that it reads | embeddings, output | slots |
|---|---|---|---|---|
| z-lab (and SpecForge) | Qwen3's, and `dflash_config` | outputs, from 0: `target_layer_ids` | the target's | own |
| transformers (`encoder.fc`) | everything at the top | likewise | the target's | own |
| DeepSpec | Qwen3's; everything at the top | likewise | in the file | after |
| speculators | `transformer_layer_config` | boundaries: `aux_hidden_state_layer_ids` = outputs + 1 | in file | flag |

Layers see their block as their types say. In any layout `dflash_config.causal`, as vLLM reads it and ModelOpt and
JetSpec write it, says it for all layers, else `is_causal` does.

Heads are written in z-lab's layout, or in DeepSpec's where they have what only that holds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint, load_weights
from speculant.drafters.heads.checkpoints.fitting import (
    check_hidden_size,
    check_taps,
    check_vocabulary,
    layer_shape,
    shape_config,
)
from speculant.drafters.heads.dflash import BlockShape, DFlashHead
from speculant.drafters.heads.head import TargetParts

_NAMES = {"encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "hidden_norm.weight"}
_MAPS = ("d2t", "t2d")  # between the vocabularies of head and target
_SPECULATORS = ("dflash", "dspark")


def matches(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint is one of these: hidden states are projected and normalised, and layers norm their keys."""
    config, tensors = checkpoint.config, _renamed(checkpoint.tensors)
    if (kind := config.get("speculators_model_type")) is not None:
        return kind in _SPECULATORS
    return "hidden_norm.weight" in tensors and "layers.0.self_attn.q_norm.weight" in tensors


def load(checkpoint: Checkpoint, target: TargetParts) -> DFlashHead:
    """Return the head; raises as `load_head`."""
    tensors, given = _renamed(checkpoint.tensors), dict(checkpoint.config)
    speculators = "speculators_model_type" in given
    own = given.pop("dflash_config", None) or {}
    given |= {name: own[name] for name in own}
    if speculators:
        given = {**(given.get("transformer_layer_config") or {}), **given}
    if "fc.weight" not in tensors:
        raise UnsupportedError(f"the head in {checkpoint.source} lacks fc.weight, so it is not what its format says.")
    _check_variant(checkpoint, given, tensors)
    flat = Checkpoint(checkpoint.source, given, tensors)
    check_hidden_size(flat, target, tensors["fc.weight"].shape[0])
    taps = _taps(flat, target, speculators=speculators)
    ids, vocabulary = _vocabulary(flat, target, tensors), target.vocabulary
    if "lm_head.weight" in tensors and ids is None:
        check_vocabulary(flat, target, tensors["lm_head.weight"].shape[0])
    if "embed_tokens.weight" in tensors:
        check_vocabulary(flat, target, tensors["embed_tokens.weight"].shape[0])
    markov = tensors.get("markov_head.markov_w1.weight")
    deepspec = not speculators and ("lm_head.weight" in tensors or markov is not None)
    anchored = given.get("sample_from_anchor", deepspec or given.get("speculators_model_type") == "dspark")
    block = BlockShape(
        size=int(flat.value("block_size", 8 if speculators else 16)),
        mask=int(flat.value("mask_token_id")),
        anchored=bool(anchored),
        markov=0 if markov is None else markov.shape[1],
        confidence="confidence_head.proj.weight" in tensors,
        multiplier=float(given.get("output_multiplier") or 1.0),
        softcap=float(given.get("final_logit_softcapping") or 0.0),
        own_embeddings="embed_tokens.weight" in tensors,
        own_output="lm_head.weight" in tensors,
        vocabulary=vocabulary,
        **_layers(flat, "encoder.fc.weight" in checkpoint.tensors, own.get("causal"), speculators=speculators),
    )
    if not 0 <= block.mask < vocabulary:
        raise UnsupportedError(
            f"the head in {checkpoint.source} marks unknown tokens by token {block.mask}, and the target has "
            f"{vocabulary} tokens: it was trained for another model. Name the target it was trained for."
        )
    head = DFlashHead(layer_shape(flat, target, norms=True), block, taps, ids=ids)
    load_weights(head, checkpoint, tensors, ignored=_MAPS)
    return head


def save(head: DFlashHead, folder: Path, target: TargetParts) -> None:
    """Write a head's config and weights into a folder."""
    block, layers = head.block, target.layers
    config = shape_config(head.shape, target) | {
        "architectures": ["Qwen3DSparkModel" if block.anchored else "DFlashDraftModel"],
        "model_type": "qwen3",
        "attention_bias": head.shape.bias,
        "num_hidden_layers": block.layers,
        "num_target_layers": layers,
        "block_size": block.size,
        "layer_types": ["full_attention" if w is None else "sliding_attention" for w in _windows(block)],
        "sliding_window": next((w for w in _windows(block) if w is not None), None),
        "sample_from_anchor": block.anchored,
    }
    causal = block.causal or (False,) * block.layers
    if causal != tuple(window is not None for window in _windows(block)):  # else as the layers' types imply
        config["is_causal"] = any(causal)
    inner: dict[str, Any] = {"causal": any(causal)} if "is_causal" in config and not block.anchored else {}
    inner |= {"mask_token_id": block.mask, "target_layer_ids": [tap % layers for tap in head.taps]}
    inner |= {"output_multiplier": block.multiplier} if block.multiplier != 1.0 else {}
    inner |= {"final_logit_softcapping": block.softcap} if block.softcap else {}
    config |= inner if block.anchored else {"dflash_config": inner}
    config |= {"markov_rank": block.markov, "markov_head_type": "vanilla"} if block.markov else {}
    config |= (
        {"enable_confidence_head": True, "confidence_head_with_markov": bool(block.markov)} if block.confidence else {}
    )
    tensors = {name: tensor.contiguous() for name, tensor in head.state_dict().items()}
    if head.ids is not None:
        tensors["d2t"] = head.ids.cpu() - torch.arange(len(head.ids))
        tensors["t2d"] = torch.zeros(target.vocabulary, dtype=torch.bool).index_fill(0, head.ids.cpu(), True)
        config["draft_vocab_size"] = len(head.ids)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    save_file(tensors, folder / "model.safetensors")


def _renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {_NAMES.get(name, name): tensor for name, tensor in tensors.items()}


def _check_variant(checkpoint: Checkpoint, given: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Refuse variants whose formulas differ."""
    kind = given.get("markov_head_type", "vanilla")
    with_markov = given.get("confidence_head_with_markov", True) or "markov_head.markov_w1.weight" not in tensors
    reason = ""
    if any(name.startswith("candidate_selector.") for name in tensors):
        reason = "is a DFlash 2 head, whose convolutions and candidate selector are not supported"
    elif "markov_head.markov_w1.weight" in tensors and kind != "vanilla":
        reason = f"has a Markov head of type {kind!r}; 'vanilla' is supported"
    elif "confidence_head.proj.weight" in tensors and not with_markov:
        reason = "has a confidence head that does not read the Markov head, which is not supported beside one"
    elif float(given.get("input_embedding_scale") or 1.0) != 1.0:
        reason = "scales the target's embeddings (input_embedding_scale), which is not supported"
    if reason:
        raise UnsupportedError(f"the head in {checkpoint.source} {reason}. Use another checkpoint.")


def _taps(checkpoint: Checkpoint, target: TargetParts, *, speculators: bool) -> tuple[int, ...]:
    """Return the layers whose outputs a head reads, from the convention of its layout."""
    if speculators:  # boundaries; that of the last layer is before the final norm, as vLLM gives it
        boundaries = [int(each) for each in checkpoint.value("aux_hidden_state_layer_ids")]
        taps, lowest = tuple(each - 1 for each in boundaries), min(boundaries, default=0) - 1
    else:
        taps = tuple(int(each) for each in checkpoint.value("target_layer_ids"))
        lowest = min(taps, default=-1)
    if lowest < 0:
        raise UnsupportedError(
            f"the head in {checkpoint.source} reads the target's embeddings as hidden states, which is not supported. "
            "Use another checkpoint."
        )
    check_taps(checkpoint, target, taps)
    if not speculators and target.layers - 1 in taps:
        raise UnsupportedError(
            f"the head in {checkpoint.source} reads the output of the target's last layer, which transformers returns "
            "after the final norm and vLLM before it, so its config does not say which. Train it on earlier layers."
        )
    width = checkpoint.tensors["fc.weight"].shape[1]
    if width != len(taps) * target.hidden_size:
        raise UnsupportedError(
            f"the head in {checkpoint.source} projects states of size {width}, and its config names {len(taps)} layers "
            f"of {target.hidden_size}: its config is wrong, or it was trained for another model."
        )
    return taps


def _vocabulary(checkpoint: Checkpoint, target: TargetParts, tensors: Mapping[str, Tensor]) -> Tensor | None:
    """Return the target's token of each of the head's logits; None if they are the target's own."""
    offsets, output = tensors.get("d2t"), tensors.get("lm_head.weight")
    if output is None or output.shape[0] == target.vocabulary:
        return None
    if offsets is None or len(offsets) != output.shape[0]:
        raise UnsupportedError(
            f"the head in {checkpoint.source} has {output.shape[0]} output tokens, the target {target.vocabulary}, "
            "and no map d2t of that length between them: it was trained for another model, or is incomplete."
        )
    ids = torch.arange(len(offsets)) + offsets.long()
    if int(ids.min()) < 0 or int(ids.max()) >= target.vocabulary:
        raise UnsupportedError(
            f"the head in {checkpoint.source} maps its tokens up to {int(ids.max())} (d2t), and the target has "
            f"{target.vocabulary}: it was trained for another model."
        )
    return ids


def _layers(checkpoint: Checkpoint, transformers: bool, causal_block: Any, *, speculators: bool) -> dict[str, Any]:
    """Return the layers, windows and causal flags of a BlockShape."""
    config, names = checkpoint.config, checkpoint.tensors
    count = len({name.split(".")[1] for name in names if name.startswith("layers.")})
    types = config.get("layer_types") or ["full_attention"] * count
    if len(types) != count:
        raise UnsupportedError(
            f"the head in {checkpoint.source} has the weights of {count} layers, and its config describes "
            f"{len(types)}; "
            "it may be truncated."
        )
    sliding = [each == "sliding_attention" for each in types]
    if causal_block is not None:
        causal = [bool(causal_block)] * count
    elif speculators:
        in_block = not config.get("sliding_window_non_causal", False)
        causal = [each and in_block for each in sliding]
    elif config.get("is_causal") is not None:
        causal = [bool(config["is_causal"])] * count
    else:
        causal = [each and not transformers for each in sliding]
    window = int(checkpoint.value("sliding_window")) if any(sliding) else None
    if transformers and window is not None:
        window += 1  # its masks see so many positions beside the token's own
    windows = tuple(window if each else None for each in sliding)
    return {"layers": count, "windows": windows if any(sliding) else (), "causal": tuple(causal) if any(causal) else ()}


def _windows(block: BlockShape) -> tuple[int | None, ...]:
    return block.windows or (None,) * block.layers
