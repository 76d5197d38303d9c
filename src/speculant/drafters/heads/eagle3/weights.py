"""Flags and tensors that all layouts of EAGLE-3 and P-EAGLE checkpoints have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint, load_weights
from speculant.drafters.heads.checkpoints.draft_vocabulary import MAPS, read_ids
from speculant.drafters.heads.checkpoints.fitting import (
    check_hidden_size,
    check_layer_fields,
    check_vocabulary,
    layer_shape,
)
from speculant.drafters.heads.checkpoints.tapped_layers import KEY
from speculant.drafters.heads.eagle3.head import Eagle3Head, Eagle3Shape
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.p_eagle.head import PEagleHead

VARIANTS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_REQUIRED = {  # flags with only one supported value
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
    "is_causal": True,
}
_PLAIN = ("logit_scale", "final_logit_softcapping", "eagle_decoder_type")  # rejected unless 1, none or "llama"
_EAGLE_CONFIG = frozenset((KEY, "parallel_draft_step", "parallel_draft_heads_num_layers", *_PLAIN))
_FORMULA = ("norm", "residual", "parallel")  # parts of the names of flags that change the formula
_HARMLESS = frozenset(  # from the target's config, or visible in the tensors
    ("rms_norm_eps", "layer_norm_eps", "norm_eps", "norm_topk_prob", "use_qk_norm", "qk_norm", "layer_norm_epsilon")
)
_SHARED = ("embed_tokens.weight", "lm_head.weight")  # NaN if `speculators` shares the target's


def check_eagle_config(checkpoint: Checkpoint, given: Mapping[str, Any]) -> None:
    """Reject unknown fields of `eagle_config`.

    Raises:
        UnsupportedError: an unknown field is set; the message names it.
    """
    for name, value in given.items():
        if name not in _EAGLE_CONFIG and name not in VARIANTS and name not in _REQUIRED and not _neutral(value):
            raise _make_unsupported(checkpoint, name, value)


def read_flags(checkpoint: Checkpoint, *configs: Mapping[str, Any]) -> dict[str, bool]:
    """Return the variants set by configs, False if they are not set.

    Raises:
        UnsupportedError: a flag is unknown or unsupported, or two configs contradict each other.
    """
    found: dict[str, bool] = {}
    for config in configs:
        for name, value in config.items():
            if name in VARIANTS:
                if found.setdefault(name, bool(value)) != bool(value):
                    raise UnsupportedError(
                        f"config.json of the head in {checkpoint.source} sets {name!r} to two different values."
                    )
            elif name in _REQUIRED:
                if value is not None and bool(value) != _REQUIRED[name]:
                    raise _make_unsupported(checkpoint, name, value)
            elif name in _PLAIN:
                if not _neutral(value) and value != "llama":
                    raise _make_unsupported(checkpoint, name, value)
            elif name not in _HARMLESS and any(part in name for part in _FORMULA) and not _neutral(value):
                raise _make_unsupported(checkpoint, name, value)
        check_layer_fields(checkpoint, config)
        if "sliding_attention" in (config.get("layer_types") or ()):
            raise _make_unsupported(checkpoint, "layer_types", "sliding_attention")
    if found.get("norm_before_fc") and found.get("fc_norm"):
        raise UnsupportedError(f"config.json of the head in {checkpoint.source} sets both norm_before_fc and fc_norm.")
    return {name: found.get(name, False) for name in VARIANTS}


def build_head(
    checkpoint: Checkpoint,
    target: TargetParts,
    *,
    config: Mapping[str, Any],
    flags: Mapping[str, bool],
    taps: tuple[int, ...],
    depth: int = 8,
) -> Eagle3Head:
    """Return the head with its weights.

    Args:
        checkpoint: checkpoint with tensors named as in `Eagle3Head`, plus `d2t` and `t2d`.
        target: target of the head.
        config: config of its decoder layers.
        flags: variants by the names in VARIANTS.
        taps: layers it reads.
        depth: number of tokens that a P-EAGLE head drafts.

    Raises:
        UnsupportedError: it does not fit its target, or tensors are missing, unexpected or of other shapes.
    """
    tensors = {
        name: tensor
        for name, tensor in checkpoint.tensors.items()
        if not name.endswith("inv_freq") and not (name in _SHARED and bool(tensor.isnan().any()))
    }
    fc, embeddings, output = (tensors.get(name) for name in ("fc.weight", "embed_tokens.weight", "lm_head.weight"))
    if fc is None:
        raise UnsupportedError(f"the head in {checkpoint.source} lacks fc.weight; it may be truncated.")
    _check_sizes(checkpoint, target, config, fc, embeddings, taps)
    size = int(config.get("draft_vocab_size") or target.vocabulary) if output is None else len(output)
    if output is None and size != target.vocabulary:
        raise UnsupportedError(
            f"the head in {checkpoint.source} drafts {size} of {target.vocabulary} tokens, but lacks lm_head.weight."
        )
    ids = read_ids(checkpoint, target, size)
    first = {name.removeprefix("layers.0.") for name in tensors if name.startswith("layers.0.")}
    shape = Eagle3Shape(
        layer=layer_shape(
            checkpoint,
            target,
            dict(config),
            hidden=len(fc),
            bias="self_attn.q_proj.bias" in first,
            norms="self_attn.q_norm.weight" in first,
        ),
        taps=taps,
        target_hidden=target.hidden_size,
        vocabulary=target.vocabulary,
        layers=max(_count(tensors, "post_attention_layernorm"), int(config.get("num_hidden_layers") or 1)),
        wide=max(1, _count(tensors, "hidden_norm")),
        draft_vocabulary=0 if ids is None else size,
        own_embeddings=embeddings is not None,
        own_output=output is not None,
        **flags,
    )
    head = Eagle3Head(shape, ids=ids)
    if "mask_hidden" in tensors:
        head = PEagleHead(shape, mask_token=_mask_token(checkpoint, target, config), depth=depth, ids=ids)
    load_weights(head, checkpoint, tensors, ignored=MAPS)
    return head


def _check_sizes(
    checkpoint: Checkpoint,
    target: TargetParts,
    config: Mapping[str, Any],
    fc: Tensor,
    embeddings: Tensor | None,
    taps: tuple[int, ...],
) -> None:
    check_hidden_size(checkpoint, target, fc.shape[1] // len(taps))
    if fc.shape[1] % len(taps):
        raise UnsupportedError(
            f"fc.weight of the head in {checkpoint.source} reads {fc.shape[1]} numbers, which does not fit "
            f"{len(taps)} layers of {target.hidden_size}: its config names other layers than it was trained with."
        )
    check_vocabulary(checkpoint, target, int(config.get("vocab_size") or target.vocabulary))
    if embeddings is not None:
        check_vocabulary(checkpoint, target, len(embeddings))
    elif len(fc) != target.hidden_size:
        raise UnsupportedError(
            f"the head in {checkpoint.source} has a hidden size of {len(fc)} and lacks embed_tokens.weight; the "
            f"target's embeddings, of size {target.hidden_size}, do not fit it."
        )


def _count(tensors: Mapping[str, Tensor], norm: str) -> int:
    """Return how many layers have the given norm."""
    return sum(name.startswith("layers.") and name.endswith(f".{norm}.weight") for name in tensors)


def _mask_token(checkpoint: Checkpoint, target: TargetParts, config: Mapping[str, Any]) -> int:
    found = checkpoint.config.get("mask_token_id", config.get("mask_token_id"))
    if found is None:
        raise UnsupportedError(
            f"config.json of the head in {checkpoint.source} has no 'mask_token_id', which P-EAGLE drafts from; add "
            "the one it was trained with."
        )
    if not 0 <= int(found) < target.vocabulary:
        raise UnsupportedError(
            f"the mask token {found} of the head in {checkpoint.source} is not in the target's vocabulary."
        )
    return int(found)


def _neutral(value: object) -> bool:
    """Return whether the value turns a flag off, or is a factor or count of 1."""
    return value is not True and value in (None, False, 1)


def _make_unsupported(checkpoint: Checkpoint, name: str, value: object) -> UnsupportedError:
    return UnsupportedError(
        f"config.json of the head in {checkpoint.source} sets {name!r} to {value!r}, which changes the head's "
        "formula in a way that is not supported."
    )
