"""Recognises plain pre-norm decoder layers of a target's class, which a head can run with its own code."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from speculant.drafters.heads.layers import DecoderLayer, LayerShape
from speculant.engines.hf.cpu.layer_matching import FAMILIES, FIXED_ROTARY, LINEARS, is_known
from speculant.engines.hf.views.own_layer import OwnLayer


def find_plain_shape(own: OwnLayer, norms: Sequence[nn.Module]) -> dict[str, Any] | None:
    """Return the sizes of a plain layer, named as in `drafters.heads.layers.LayerShape`.

    Args:
        own: the layer; its tensors have the names of Llama's.
        norms: RMSNorms around it.

    Returns:
        None if the layer or a norm is of another class, its attention has a window, its rotary embedding depends on the
        length of the text, or a part has been changed.
    """
    layer: Any = own.layer
    home = type(layer).__module__
    if own.window is not None or not is_known(layer):
        return None
    rotary, attention = own.rotary, layer.self_attn
    kind = getattr(sys.modules[home], f"{FAMILIES[home]}RotaryEmbedding", None)
    if type(rotary) is not kind or getattr(rotary, "rope_type", None) not in FIXED_ROTARY:
        return None
    heads, head_dim = attention.q_proj.out_features // attention.head_dim, int(attention.head_dim)
    eps = {float(norm.variance_epsilon) for norm in (layer.input_layernorm, layer.post_attention_layernorm)}
    if any(type(norm) is not type(layer.input_layernorm) for norm in norms) or attention.scaling != head_dim**-0.5:
        return None
    eps |= {float(norm.variance_epsilon) for norm in (*norms, *_head_norms(attention))}
    if len(eps) > 1:
        return None
    frequencies: torch.Tensor = rotary.inv_freq
    return {
        "hidden": attention.q_proj.in_features,
        "inner": layer.mlp.up_proj.out_features,
        "heads": heads,
        "kv_heads": attention.k_proj.out_features // head_dim,
        "head_dim": head_dim,
        "eps": eps.pop(),
        "bias": attention.q_proj.bias is not None,
        "norms": bool(_head_norms(attention)),
        "frequencies": frequencies.detach().float(),
        "scale": float(rotary.attention_scaling),
    }


def view_first_layers(
    model: Any, count: int, known: dict[nn.Module, nn.Module]
) -> tuple[tuple[nn.Module, ...], dict[str, Any]] | None:
    """Return plain layers that share the weights of a Llama-like model's first layers, and their sizes.

    Args:
        model: model with the layers.
        count: number of layers.
        known: plain layers created earlier, by layer; those whose weights have changed are created again.

    Returns:
        None if a layer is of another kind, or quantised.
    """
    home = type(model).__module__
    if home not in FAMILIES or type(model).__name__ != f"{FAMILIES[home]}ForCausalLM":
        return None
    found, layers = list[nn.Module](), list(model.model.layers)[:count]
    sizes: dict[str, Any] | None = None
    for layer in layers:
        window = getattr(layer.self_attn, "sliding_window", None)
        sizes = find_plain_shape(
            OwnLayer(layer, model.model.rotary_emb, kind="sliding_attention", window=window, exact=frozenset()), ()
        )
        if sizes is None or not all(type(each) is nn.Linear for each in _linears(layer)):
            return None
        weights, plain = dict(layer.named_parameters()), known.get(layer)
        if plain is None or any(each is not weights.get(name) for name, each in plain.named_parameters()):
            plain = known[layer] = _share_weights(weights, LayerShape(**sizes))
        found.append(plain)
    return None if sizes is None else (tuple(found), sizes)


def _share_weights(weights: Mapping[str, nn.Parameter], shape: LayerShape) -> nn.Module:
    with torch.device("meta"):
        plain = DecoderLayer(shape)
    for name, parameter in weights.items():
        above, _, last = name.rpartition(".")
        setattr(plain.get_submodule(above), last, parameter)
    return plain


def _linears(layer: Any) -> list[Any]:
    return [getattr(layer.self_attn if name in LINEARS[:4] else layer.mlp, name) for name in LINEARS]


def _head_norms(attention: Any) -> list[Any]:
    """Return the query and key norms, if there are any."""
    return [attention._modules[name] for name in ("q_norm", "k_norm") if name in attention._modules]
