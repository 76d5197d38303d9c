"""Initial state of new heads: decoder layers of the target's sizes, and weights copied from the target or random."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.layers import LayerShape, RMSNorm

SPREAD = 0.02  # standard deviation of new weights
HEADS = 4  # default for kinds with one head per depth


def target_shape(target: TargetParts, **changes: Any) -> LayerShape:
    """Return the shape of a layer like the target's.

    Args:
        target: target of the head.
        changes: fields of LayerShape that differ.
    """
    config: Any = target.config
    hidden = target.hidden_size
    heads = int(getattr(config, "num_attention_heads", 0) or max(1, hidden // 64))
    head_dim = int(getattr(config, "head_dim", None) or hidden // heads)
    positions = int(target.positions or 2048)
    rope = dict(getattr(config, "rope_parameters", None) or {})
    if "rope_theta" not in rope:  # missing, or given separately for each kind of layer
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
    """Draw the weights of all linear layers from a normal distribution, and set biases to 0."""
    for each in module.modules():
        if isinstance(each, nn.Linear):
            nn.init.normal_(each.weight, std=SPREAD)
            if each.bias is not None:
                nn.init.zeros_(each.bias)


def copy_projections(head: nn.Module, target: TargetParts) -> None:
    """Copy the target's weights into all projections to the vocabulary."""
    weights = target.projection().detach().float().cpu()
    for each in head.modules():
        if isinstance(each, nn.Linear) and each.weight.shape == weights.shape:
            with torch.no_grad():
                each.weight.copy_(weights)
                if each.bias is not None:
                    each.bias.zero_()


def copy_embeddings(table: nn.Embedding, target: TargetParts) -> None:
    """Copy the target's weights into embeddings."""
    with torch.no_grad():
        ids = torch.arange(target.vocabulary, device=target.projection().device)
        table.weight[: target.vocabulary] = target.embed(ids).float().cpu()


def copy_projection(projection: nn.Linear, target: TargetParts) -> None:
    """Copy the target's weights into a projection."""
    with torch.no_grad():
        projection.weight.copy_(target.projection().detach().float().cpu())


def copy_final_norm(norm: RMSNorm, target: TargetParts) -> None:
    """Copy the weights of the target's final norm, of whatever class, into a head's norm of the same size."""
    signs = torch.ones(target.hidden_size)
    signs[1::2] = -1  # mean 0 and mean square 1, so that any norm returns it times the norm's weights
    with torch.no_grad():
        norm.weight.copy_(target.norm(signs.to(target.projection())).float().cpu() * signs)


def copy_weights(module: nn.Module, source: nn.Module) -> None:
    """Copy all weights that a module has in common with another, by name and shape; the others stay as they are."""
    found = dict(source.named_parameters())
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if name in found and found[name].shape == weight.shape:
                weight.copy_(found[name].float().cpu())
