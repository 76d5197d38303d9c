"""The parts of a head's decoder layers, named as in public checkpoints of Llama-like heads.

Attention is written so that keys of one source can be combined with queries of another: EAGLE-3 feeds it twice the
hidden size, DFlash adds keys of the target's states to those of its own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Angles = tuple[Tensor, Tensor]  # cos and sin
Linear = Callable[[nn.Module, Tensor], Tensor]  # `TargetParts.linear`
_TABLE = 9  # the smallest table of angles has 2 ** this positions


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """The sizes of a decoder layer.

    Attributes:
        hidden: D, size of its output.
        inner: inner size of its MLP.
        heads, kv_heads, head_dim: sizes of its attention.
        given: input size of its attention; 0 for D.
        eps: epsilon of its norms.
        bias: whether queries, keys and values have biases.
        norms: whether queries and keys are normalised per head (Qwen3).
        theta: base of its rotary embedding.
        frequencies: Float32[rotary_dim / 2], for a rotary embedding that is scaled or rotates only part of a key; None
            to derive them from the base.
        scale: factor for cos and sin.
        rope: the rotary embedding as described in configs, transformers' `rope_parameters`.
        positions: number of positions that its rotary embedding is made for.
    """

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    given: int = 0
    eps: float = 1e-6
    bias: bool = False
    norms: bool = False
    theta: float = 10000.0
    frequencies: Tensor | None = field(default=None, compare=False)
    scale: float = 1.0
    rope: dict[str, Any] = field(default_factory=dict, compare=False)
    positions: int = 2048

    @property
    def rotary_dim(self) -> int:
        """Number of leading dimensions of a key that are rotated; the others are left as they are."""
        return self.head_dim if self.frequencies is None else 2 * len(self.frequencies)


class RMSNorm(nn.Module):
    """Scales [..., D] to a mean square of 1, in float32, then by its weights in the input's dtype."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype is torch.float32 is self.weight.dtype:
            return nn.functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return torch.mul(self.weight, scaled.to(x.dtype))


class Rotary(nn.Module):
    """Rotates keys and queries by position (Su et al. 2021, arXiv 2104.09864)."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        plain = shape.theta ** -(torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
        found = plain if shape.frequencies is None else shape.frequencies.float()
        self.frequencies: Tensor
        self.register_buffer("frequencies", found, persistent=False)  # from the config, not in checkpoints
        self.scale = shape.scale
        self._table: tuple[Tensor, Tensor] | None = None  # cos and sin of the first positions

    def angles(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin [..., n, rotary_dim] for positions Int64[..., n], in the dtype of `like`."""
        turned = positions[..., None].float() * self.frequencies.float()
        turned = torch.cat([turned, turned], dim=-1)
        return (turned.cos() * self.scale).to(like.dtype), (turned.sin() * self.scale).to(like.dtype)

    def look_up(self, positions: Tensor, maximum: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the result of `angles` for positions Int64[n] up to `maximum`, from a table."""
        cos, sin = self.table(maximum, like)
        return cos[positions], sin[positions]

    def table(self, maximum: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin [m, rotary_dim] of the first positions, up to at least `maximum`."""
        table = self._table
        if table is None or len(table[0]) <= maximum or table[0].dtype is not like.dtype:
            length = 1 << max(_TABLE, maximum.bit_length())
            with torch.inference_mode(mode=False), torch.no_grad():
                self._table = table = self.angles(torch.arange(length, device=like.device), like)
        return table

    def _apply(self, fn: Any, recurse: bool = True) -> Rotary:
        """Move the frequencies, but keep them in float32 whatever the dtype of the weights."""
        exact, self._table = self.frequencies, None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.frequencies = exact.to(self.frequencies.device)
        return self


def rotate_rows(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Return keys or queries [..., H, n, d] rotated by cos and sin [..., n, r]; dimensions after the first r stay."""
    cos, sin = (each.unsqueeze(-3) for each in angles)
    if (size := cos.shape[-1]) < x.shape[-1]:
        return torch.cat([rotate_rows(x[..., :size], angles), x[..., size:]], dim=-1)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def join_tensors(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors; a single one is returned as it is."""
    return parts[0] if len(parts) == 1 else torch.cat([*parts])


class Attention(nn.Module):
    """Grouped-query attention with separate projections."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        given, dim = shape.given or shape.hidden, shape.head_dim
        self.shape = shape
        self.q_proj = nn.Linear(given, shape.heads * dim, bias=shape.bias)
        self.k_proj = nn.Linear(given, shape.kv_heads * dim, bias=shape.bias)
        self.v_proj = nn.Linear(given, shape.kv_heads * dim, bias=shape.bias)
        self.o_proj = nn.Linear(shape.heads * dim, shape.hidden, bias=False)
        if shape.norms:
            self.q_norm, self.k_norm = RMSNorm(dim, shape.eps), RMSNorm(dim, shape.eps)

    def queries(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """Return rotated queries [..., H, n, d] for x [..., n, D']."""
        found = self._split(self.q_proj(x))
        return rotate_rows(self.q_norm(found) if self.shape.norms else found, angles)

    def keys_values(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return rotated keys and values [..., H_kv, n, d] for x [..., n, D']."""
        keys = self._split(self.k_proj(x))
        return rotate_rows(self.k_norm(keys) if self.shape.norms else keys, angles), self._split(self.v_proj(x))

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor | None) -> Tensor:
        """Return the output [..., n, D] of attention; takes the arguments of `weigh`."""
        output: Tensor = self.o_proj(self.weigh(queries, keys, values, seen))
        return output

    def weigh(self, queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor | None) -> Tensor:
        """Return the attention output before its projection, [..., n, H * d], for queries [..., H, n, d].

        Args:
            queries: rotated queries.
            keys, values: [..., H_kv, m, d].
            seen: Bool[..., n, m], keys that each query may see; None for all.
        """
        mask = seen if seen is None or seen.ndim == 2 else seen.unsqueeze(-3)
        flat = queries.ndim == 3
        if flat:
            queries, keys, values = queries[None], keys[None], values[None]
        found = nn.functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, enable_gqa=self.shape.kv_heads != self.shape.heads
        )
        found = found[0] if flat else found
        return found.transpose(-3, -2).flatten(-2)

    def weigh_apart(
        self,
        queries: Tensor,
        held: Sequence[tuple[Tensor, Tensor]],
        seen: Sequence[Tensor | None],
        sizes: Sequence[int],
    ) -> Tensor:
        """Return the output before projection, [n, H * d], for rows of several texts, each over its own keys.

        Args:
            queries: [H, n, d], rotated, text by text.
            held: keys and values [H_kv, m, d] of each text.
            seen: Bool[n_i, m], keys that each query of a text may see; None for all.
            sizes: n_i, number of queries of each text.
        """
        own = torch.split(queries, [*sizes], dim=-2)
        return join_tensors([self.weigh(each, *rows, mask) for each, rows, mask in zip(own, held, seen, strict=True)])

    def _split(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], -1, self.shape.head_dim).transpose(-3, -2)


class MLP(nn.Module):
    """The gated MLP of Llama."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.down_proj = nn.Linear(shape.inner, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return output


class DecoderLayer(nn.Module):
    """A pre-norm decoder layer; EAGLE-1's has no norm before its attention."""

    def __init__(self, shape: LayerShape, *, first_norm: bool = True) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(shape), MLP(shape)
        if first_norm:
            self.input_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.eps)

    def attention_input(self, x: Tensor) -> Tensor:
        """Return the attention's input for x [..., n, D]."""
        if not hasattr(self, "input_layernorm"):
            return x
        output: Tensor = self.input_layernorm(x)
        return output

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """Return the layer's output, given the attention's input before its norm and the attention's output."""
        x = residual + attended
        return torch.add(x, self.mlp(self.post_attention_layernorm(x)))
