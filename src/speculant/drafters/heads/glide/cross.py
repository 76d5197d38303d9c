"""GLIDE's cross-attention: queries of the head over the keys and values that the target's top layer has cached."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.layers import LayerShape, Rotary, rotate_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossShape:
    """The target's attention, which the cross-attention reads.

    Attributes:
        heads, kv_heads, head_dim: sizes of the target's attention.
        frequencies: Float32[head_dim / 2] of the target's rotary embedding.
        scale: factor for cos and sin.
        block: tokens per draft in training; the head was not trained to draft more.
    """

    heads: int
    kv_heads: int
    head_dim: int
    frequencies: Tensor = field(compare=False)
    scale: float = 1.0
    block: int = 5


class CrossAttention(nn.Module):
    """Attention with queries of the head over keys and values of the target."""

    def __init__(self, size: int, shape: CrossShape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(size, shape.heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, size, bias=False)
        self.rotary = Rotary(
            LayerShape(
                hidden=size,
                inner=0,
                heads=shape.heads,
                kv_heads=shape.kv_heads,
                head_dim=shape.head_dim,
                frequencies=shape.frequencies,
                scale=shape.scale,
            )
        )

    def queries(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """Return rotated queries [..., H, n, d] for x [..., n, D]."""
        found = self.q_proj(x).reshape(*x.shape[:-1], -1, self.shape.head_dim).transpose(-3, -2)
        return rotate_rows(found, angles)

    def weigh(self, queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor | None) -> Tensor:
        """Return [..., n, H * d], before the output projection, over keys [..., H_kv, m, d]; `seen` Bool[..., n, m]."""
        keys, values, flat = keys.to(queries.dtype), values.to(queries.dtype), queries.ndim == 3
        if flat:
            queries, keys, values = queries[None], keys[None], values[None]
        mask, shared = None if seen is None else seen.unsqueeze(-3), self.shape.kv_heads != self.shape.heads
        found = nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=shared)
        return (found[0] if flat else found).transpose(-3, -2).flatten(-2)


def target_cross_shape(target: TargetParts, *, block: int = 5) -> CrossShape:
    """Return the shape of a target's attention, from its config.

    Raises:
        UnsupportedError: its layers rotate keys in several ways, or the config does not describe its attention.
    """
    config: Any = target.config
    heads = getattr(config, "num_attention_heads", None)
    rope = dict(getattr(config, "rope_parameters", None) or {})
    if heads is None or "rope_theta" not in rope or float(rope.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedError(
            "GLIDE reads the target's rotated keys, and this target's config does not describe one rotary embedding "
            "for all layers and dimensions; use another kind of head."
        )
    dim = int(getattr(config, "head_dim", None) or target.hidden_size // heads)
    frequencies, scale = target.frequencies(rope, dim, target.positions or 2048)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    return CrossShape(heads=heads, kv_heads=kv_heads, head_dim=dim, frequencies=frequencies, scale=scale, block=block)
