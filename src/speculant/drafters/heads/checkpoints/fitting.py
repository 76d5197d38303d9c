"""Checks that a head fits its target, and the shape of its decoder layers in configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.layers import LayerShape

_UNSUPPORTED = ("attention_k_eq_v", "attn_logit_softcapping", "query_pre_attn_scalar")  # from Gemma's layers


def check_hidden_size(checkpoint: Checkpoint, target: TargetParts, hidden: int) -> None:
    """Check that a head has the target's hidden size.

    Raises:
        UnsupportedError: it has another.
    """
    if hidden != target.hidden_size:
        raise UnsupportedError(
            f"the head in {checkpoint.source} reads hidden states of size {hidden}, but the target's have "
            f"{target.hidden_size}: it was trained for another model. Name the target it was trained for."
        )


def check_vocabulary(checkpoint: Checkpoint, target: TargetParts, vocabulary: int) -> None:
    """Check that a head has the target's vocabulary size.

    Raises:
        UnsupportedError: it has another.
    """
    if vocabulary != target.vocabulary:
        raise UnsupportedError(
            f"the head in {checkpoint.source} has a vocabulary of {vocabulary} tokens, but the target's has "
            f"{target.vocabulary}: it was trained for another model. Name the target it was trained for."
        )


def check_decoder(noun: str, decoder_only: str, target: TargetParts) -> None:
    """Check that heads or draft models can draft for an encoder-decoder, if the target is one.

    Args:
        noun: what they are, in the plural.
        decoder_only: see `HeadKind.decoder_only`.
        target: the target.

    Raises:
        UnsupportedError: they cannot.
    """
    if target.source_size and decoder_only:
        raise UnsupportedError(
            f"the target is an encoder-decoder, for which {noun} do not draft: {decoder_only}. Use heads of kind "
            "blockwise, medusa or specdec, or a method that copies, such as 'mix'."
        )


def check_taps(checkpoint: Checkpoint, target: TargetParts, taps: tuple[int, ...]) -> None:
    """Check that the target has all the given decoder layers, and that none is given twice.

    Raises:
        UnsupportedError: a layer is missing or given twice.
    """
    missing = [str(tap) for tap in taps if not -1 <= tap < target.layers]
    if not missing and len(set(taps)) == len(taps):
        return
    reason = f"the target has no layer {' or '.join(missing)}" if missing else "one of them is named twice"
    raise UnsupportedError(
        f"the head in {checkpoint.source} reads the outputs of layers {', '.join(map(str, taps))}, and {reason}: its "
        f"{target.layers} layers are counted from 0 to {target.layers - 1}. The head was trained for another model, "
        "or its config names the wrong layers."
    )


def layer_shape(
    checkpoint: Checkpoint, target: TargetParts, config: dict[str, Any] | None = None, **changes: Any
) -> LayerShape:
    """Return the shape of decoder layers given by a config, with the defaults of transformers' LlamaConfig.

    Args:
        checkpoint: checkpoint of the head.
        target: target of the head.
        config: the part of its config that describes the layers; None for the whole config.
        changes: fields of LayerShape that the format fixes.
    """
    given = dict(checkpoint.config) if config is None else config
    hidden, heads = int(given.get("hidden_size", target.hidden_size)), int(given.get("num_attention_heads", 0))
    if not heads:
        raise UnsupportedError(f"config.json of the head in {checkpoint.source} has no 'num_attention_heads'.")
    rope = given.get("rope_parameters") or given.get("rope_scaling") or {}
    rope = {"rope_type": rope.get("rope_type", rope.get("type", "default")), **rope}
    rope.setdefault("rope_theta", float(given.get("rope_theta") or 10000.0))
    check_layer_fields(checkpoint, given)
    head_dim, positions = int(given.get("head_dim") or hidden // heads), int(given.get("max_position_embeddings", 2048))
    part = float(rope.setdefault("partial_rotary_factor", given.get("partial_rotary_factor") or 1.0))
    whole = {name: value for name, value in rope.items() if name != "partial_rotary_factor"}
    if part == 1.0:
        rope = whole
    frequencies, scale = target.frequencies(whole, 2 * int(head_dim * part / 2), positions)
    fields: dict[str, Any] = {
        "hidden": hidden,
        "inner": int(given.get("intermediate_size", 4 * hidden)),
        "heads": heads,
        "kv_heads": int(given.get("num_key_value_heads") or heads),
        "head_dim": head_dim,
        "eps": float(given.get("rms_norm_eps", 1e-6)),
        "bias": bool(given.get("qkv_bias", given.get("attention_bias", False))),
        "theta": float(rope["rope_theta"]),
        "frequencies": frequencies,
        "scale": scale,
        "rope": rope,
        "positions": positions,
    }
    return LayerShape(**fields | changes)


def check_layer_fields(checkpoint: Checkpoint, given: Mapping[str, Any]) -> None:
    """Reject fields of decoder layers that change their formula in an unsupported way.

    Raises:
        UnsupportedError: there is such a field; the message names it.
    """
    for name, value in given.items():
        activation = name in ("hidden_act", "hidden_activation") and value not in (None, "silu", "swish")
        if activation or (name in _UNSUPPORTED and value not in (None, False)):
            raise UnsupportedError(
                f"config.json of the head in {checkpoint.source} sets {name!r} to {value!r}, which changes the formula "
                "of its layers in a way that is not supported. Use another checkpoint."
            )


def shape_config(shape: LayerShape, target: TargetParts) -> dict[str, Any]:
    """Return the config of a head's decoder layers, in the form that `layer_shape` reads."""
    rope = shape.rope or {"rope_type": "default", "rope_theta": shape.theta}
    return {
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": shape.eps,
        "qkv_bias": shape.bias,
        "rope_theta": shape.theta,
        "rope_parameters": rope,
        "rope_scaling": None if rope["rope_type"] == "default" else rope,  # for transformers before 5
        "max_position_embeddings": shape.positions,
        "vocab_size": target.vocabulary,
        "hidden_act": "silu",
    }
