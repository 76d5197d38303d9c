"""Checkpoints of DFlash and of the methods built on it: DSpark, Domino, DFlash 2 and JetSpec.

| layout | config | layers that it reads | embeddings, output | slots |
|---|---|---|---|---|
| z-lab, SpecForge, ModelOpt, JetSpec | Qwen3's, and `dflash_config` | outputs, from 0: `target_layer_ids` | \
the target's | own, or after |
| transformers (`encoder.fc`) | everything at the top | likewise | the target's | own |
| DeepSpec | Qwen3's; everything at the top | likewise | in the file | after |
| speculators | `transformer_layer_config` | boundaries: `aux_hidden_state_layer_ids` = outputs + 1 | in file | flag |

fields.py reads the fields that change the formula. Heads are written in z-lab's layout, or in DeepSpec's if they are
of DSpark's kind.
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
from speculant.drafters.heads.checkpoints.draft_vocabulary import write_ids
from speculant.drafters.heads.checkpoints.fitting import (
    check_hidden_size,
    check_taps,
    check_vocabulary,
    layer_shape,
    shape_config,
)
from speculant.drafters.heads.dflash.fields import (
    check_fields,
    is_anchored,
    read_corrections,
    read_layers,
)
from speculant.drafters.heads.dflash.head import DFlashHead
from speculant.drafters.heads.dflash.shape import BlockShape
from speculant.drafters.heads.head import TargetParts

_NAMES = {  # prefixes of tensor names in layouts, and in the head
    "encoder.fc.": "fc.",
    "encoder.output_norm_enc.": "hidden_norm.",
    "prefix_gru.": "domino_head.prefix_gru.",
    "embed_proj.": "domino_head.embed_proj.",
    "markov_w1.": "markov_head.markov_w1.",  # ModelOpt's DSpark
    "markov_w2.": "markov_head.markov_w2.",
    "gate_proj.": "markov_head.gate_proj.",
    "joint_proj.": "markov_head.joint_proj.",
    "confidence_proj.": "confidence_head.proj.",
    "candidate_selector.predecessor_codebook.weight": "candidate_selector.predecessor_codebook",
    "candidate_selector.successor_codebook.weight": "candidate_selector.successor_codebook",
}
_MAPS = ("d2t", "t2d")  # between the vocabularies of head and target
_IGNORED = (*_MAPS, "verifier_norm.weight", "verifier_lm_head.weight")  # the last two: copies of the target's
_SPECULATORS = ("dflash", "dflash2", "dspark")
_DEFAULTS = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16}  # speculators


def matches(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is of this family: it projects and norms hidden states, and its layers norm keys."""
    config, tensors = checkpoint.config, _rename_tensors(checkpoint.tensors)
    if (kind := config.get("speculators_model_type")) is not None:
        return kind in _SPECULATORS
    return "hidden_norm.weight" in tensors and "layers.0.self_attn.q_norm.weight" in tensors


def matches_jetspec(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is JetSpec's: its slots see only those before them, and it is meant for trees."""
    return matches(checkpoint) and bool((checkpoint.config.get("dflash_config") or {}).get("causal_head"))


def matches_others(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is of this family but not JetSpec's."""
    return matches(checkpoint) and not matches_jetspec(checkpoint)


def load(checkpoint: Checkpoint, target: TargetParts) -> DFlashHead:
    """Return the head; raises the same errors as `load_head`."""
    tensors, given = _rename_tensors(checkpoint.tensors), dict(checkpoint.config)
    speculators = "speculators_model_type" in given
    own = given.pop("dflash_config", None) or {}
    given |= {name: own[name] for name in own}
    if speculators:
        given = {**(given.get("transformer_layer_config") or {}), **given}
        if given["speculators_model_type"] == "dflash2":
            given = {"projector_type": "dflash2", **_DEFAULTS, **given}
    if "fc.weight" not in tensors:
        raise UnsupportedError(f"the head in {checkpoint.source} lacks fc.weight, so it does not match its format.")
    check_fields(checkpoint, own, given, target.hidden_size)
    flat = Checkpoint(checkpoint.source, given, tensors)
    check_hidden_size(flat, target, tensors["fc.weight"].shape[0])
    taps = _taps(flat, target, speculators=speculators)
    ids, vocabulary = _vocabulary(flat, target, tensors), target.vocabulary
    if "lm_head.weight" in tensors and ids is None:
        check_vocabulary(flat, target, tensors["lm_head.weight"].shape[0])
    if "embed_tokens.weight" in tensors:
        check_vocabulary(flat, target, tensors["embed_tokens.weight"].shape[0])
    deepspec = not speculators and ("lm_head.weight" in tensors or "markov_head.markov_w1.weight" in tensors)
    block = BlockShape(
        size=int(flat.value("block_size", 8 if speculators else 16)),
        mask=int(flat.value("mask_token_id")),
        anchored=is_anchored(given, deepspec=deepspec),
        multiplier=float(given.get("output_multiplier") or 1.0),
        softcap=float(given.get("final_logit_softcapping") or 0.0),
        own_embeddings="embed_tokens.weight" in tensors,
        own_output="lm_head.weight" in tensors,
        vocabulary=vocabulary,
        **read_layers(flat, given, speculators=speculators, transformers="encoder.fc.weight" in checkpoint.tensors),
        **read_corrections(flat, given),
    )
    if not 0 <= block.mask < vocabulary:
        raise UnsupportedError(
            f"the head in {checkpoint.source} uses token {block.mask} as its mask, but the target has {vocabulary} "
            "tokens: it was trained for another model. Name the target it was trained for."
        )
    if ids is not None and block.selector is not None:
        raise UnsupportedError(
            f"the head in {checkpoint.source} is a DFlash 2 head with fewer tokens than the target "
            "(draft_vocab_size), which is not supported. Use another checkpoint."
        )
    head = DFlashHead(layer_shape(flat, target, norms=True), block, taps, ids=ids)
    names = {_rename(name): name for name in checkpoint.tensors}
    load_weights(head, checkpoint, tensors, ignored=_IGNORED, names=names)
    return head


def save(head: DFlashHead, folder: Path, target: TargetParts) -> None:
    """Write a head's config and weights into a folder."""
    block, layers = head.block, target.layers
    windows = block.windows or (None,) * block.layers
    deepspec = block.anchored and block.domino is None
    config = shape_config(head.shape, target) | {
        "architectures": [_architecture(block)],
        "model_type": "qwen3",
        "attention_bias": head.shape.bias,
        "num_hidden_layers": block.layers,
        "num_target_layers": layers,
        "block_size": block.size,
        "layer_types": ["full_attention" if w is None else "sliding_attention" for w in windows],
        "sliding_window": next((w for w in windows if w is not None), None),
        "sample_from_anchor": block.anchored,
    }
    causal = block.causal or (False,) * block.layers
    if causal != tuple(window is not None for window in windows):  # otherwise the layers' types imply it
        config["is_causal"] = any(causal)
    inner: dict[str, Any] = {"causal": any(causal)} if "is_causal" in config and not deepspec else {}
    if all(causal) and not (block.windows or deepspec or head.correction):
        inner["causal_head"] = True  # JetSpec
    inner |= {"mask_token_id": block.mask, "target_layer_ids": [tap % layers for tap in head.taps]}
    inner |= {"output_multiplier": block.multiplier} if block.multiplier != 1.0 else {}
    inner |= {"final_logit_softcapping": block.softcap} if block.softcap else {}
    inner |= {} if block.scale is None else {"input_embedding_scale": block.scale}
    inner |= _correction_fields(block)
    config |= inner if deepspec else {"dflash_config": inner}
    tensors = {_public(name): tensor.contiguous() for name, tensor in head.state_dict().items()}
    if head.ids is not None:
        tensors |= write_ids(head.ids, target.vocabulary)
        config["draft_vocab_size"] = len(head.ids)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    save_file(tensors, folder / "model.safetensors")


def _architecture(block: BlockShape) -> str:
    if block.domino is not None:
        return "DominoDraftModel"
    if block.selector is not None:
        return "DFlash2DraftModel"
    return "Qwen3DSparkModel" if block.anchored else "DFlashDraftModel"


def _correction_fields(block: BlockShape) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if block.markov:
        found |= {"markov_rank": block.markov, "markov_head_type": block.markov_kind}
    if block.confidence:
        reads = bool(block.markov) and block.confidence_markov
        found |= {"enable_confidence_head": True, "confidence_head_with_markov": reads}
    if (domino := block.domino) is not None:
        found |= {"projector_type": "domino", "shift_label": block.anchored, "pure_draft_prefix_len": domino.plain}
        found |= {"emb_dim": domino.inner, "gru_hidden_dim": domino.state}
    if (selector := block.selector) is not None:
        found |= {"projector_type": "dflash2", "selector_rank": selector.rank, "selector_top_k": selector.candidates}
    if (convolution := block.convolution) is not None:
        found |= {"conv_kernel_size": convolution.taps, "conv_group_size": convolution.group}
    return found


def _public(name: str) -> str:
    """Return the name of a tensor in checkpoints."""
    return name.removeprefix("domino_head.")


def _rename_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {_rename(name): tensor for name, tensor in tensors.items() if not name.endswith("inv_freq")}


def _rename(name: str) -> str:
    """Return the head's name for a tensor; SpecForge once put its heads below `logit_head`."""
    plain = name.removeprefix("logit_head.")
    for public, own in _NAMES.items():
        if plain.startswith(public):
            return own + plain.removeprefix(public)
    return plain


def _taps(checkpoint: Checkpoint, target: TargetParts, *, speculators: bool) -> tuple[int, ...]:
    """Return the layers whose outputs a head reads, by the convention of its layout."""
    if speculators:  # boundaries; the last layer's is before the final norm, as in vLLM
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
            f"the head in {checkpoint.source} projects states of size {width}, but its config names {len(taps)} "
            f"layers of {target.hidden_size}: its config is wrong, or it was trained for another model."
        )
    return taps


def _vocabulary(checkpoint: Checkpoint, target: TargetParts, tensors: Mapping[str, Tensor]) -> Tensor | None:
    """Return the target's token for each of the head's logits; None if the vocabularies are equal."""
    offsets, output = tensors.get("d2t"), tensors.get("lm_head.weight")
    if output is None or output.shape[0] == target.vocabulary:
        return None
    if offsets is None or len(offsets) != output.shape[0]:
        raise UnsupportedError(
            f"the head in {checkpoint.source} has {output.shape[0]} output tokens, the target has "
            f"{target.vocabulary}, and there is no d2t map of that length: it was trained for another model, or is "
            "incomplete."
        )
    ids = torch.arange(len(offsets)) + offsets.long()
    if int(ids.min()) < 0 or int(ids.max()) >= target.vocabulary:
        raise UnsupportedError(
            f"the head in {checkpoint.source} maps its tokens to ids up to {int(ids.max())} (d2t), but the target has "
            f"{target.vocabulary} tokens: it was trained for another model."
        )
    return ids
