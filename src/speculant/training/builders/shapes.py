"""Sizes of a new head's decoder layers: the target's own."""

from __future__ import annotations

from typing import Any

from torch import nn

from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.layers import LayerShape

SPREAD = 0.02  # of new weights


def target_shape(target: TargetParts, **changes: Any) -> LayerShape:
    """Return the shape of a layer like the target's.

    Args:
        target: of the head.
        changes: fields of LayerShape that differ.
    """
    config: Any = target.config
    hidden = target.hidden_size
    heads = int(getattr(config, "num_attention_heads", 0) or max(1, hidden // 64))
    head_dim = int(getattr(config, "head_dim", None) or hidden // heads)
    positions = int(target.positions or 2048)
    rope = dict(getattr(config, "rope_parameters", None) or {})
    if "rope_theta" not in rope:  # none, or one for each kind of layer
        rope = {"rope_type": "default", "rope_theta": float(getattr(config, "rope_theta", None) or 10000.0)}
    frequencies, scale = target.frequencies(rope, head_dim, positions)
    fields: dict[str, Any] = {
        "hidden": hidden,
        "inner": int(getattr(config, "intermediate_size", None) or 4 * hidden),
        "heads": heads,
        "kv_heads": int(getattr(config, "num_key_value_heads", None) or heads),
        "head_dim": head_dim,
        "eps": float(getattr(config, "rms_norm_eps", None) or 1e-6),
        "theta": float(rope["rope_theta"]),
        "frequencies": frequencies,
        "scale": scale,
        "rope": rope,
        "positions": positions,
    }
    return LayerShape(**fields | changes)


def spread_weights(module: nn.Module) -> None:
    """Draw the weights of all linear layers from a normal distribution; biases become 0."""
    for each in module.modules():
        if isinstance(each, nn.Linear):
            nn.init.normal_(each.weight, std=SPREAD)
            if each.bias is not None:
                nn.init.zeros_(each.bias)
