"""GLIDE: a small decoder layer that attends to its own text and to the target's last keys and values.

Du, Jiang et al.: "GliDe with a CaPE: A Low-Hassle Method to Accelerate Speculative Decoding", ICML 2024, arXiv
2402.02082. The layer has self-attention, then cross-attention to what the target's top layer has cached of committed
tokens (rotated already, so queries are rotated as the target's), then its MLP. Its own keys and values depend on the
tokens alone, so those of drafted tokens stay right when they are accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from speculant.core.engine import TargetCache
from speculant.core.errors import UnsupportedError, UsageError
from speculant.drafters.heads.cache import HeadCache
from speculant.drafters.heads.head import Head, HeadState, TargetParts, TextHead
from speculant.drafters.heads.layers import DecoderLayer, LayerShape, RMSNorm, Rotary, rotated


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossShape:
    """What the cross-attention reads.

    Attributes:
        heads, kv_heads, head_dim: of the target's attention.
        frequencies: Float32[head_dim / 2] of the target's rotary embedding.
        scale: what its cos and sin are multiplied by.
        block: tokens of a draft in training, beyond which the head has never drafted.
    """

    heads: int
    kv_heads: int
    head_dim: int
    frequencies: Tensor = field(compare=False)
    scale: float = 1.0
    block: int = 5


class CrossAttention(nn.Module):
    """Queries of the head over keys and values of the target."""

    def __init__(self, size: int, shape: CrossShape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(size, shape.heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, size, bias=False)
        self._rotary = Rotary(
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

    def forward(self, x: Tensor, positions: Tensor, keys: Tensor, values: Tensor, seen: Tensor | None) -> Tensor:
        """Return [..., n, D] of x [..., n, D] over keys and values [..., H_kv, m, d]; `seen` Bool[..., n, m]."""
        queries = self.q_proj(x).reshape(*x.shape[:-1], -1, self.shape.head_dim).transpose(-3, -2)
        queries = rotated(queries, self._rotary.angles(positions, x))
        keys, values, flat = keys.to(x.dtype), values.to(x.dtype), queries.ndim == 3
        if flat:
            queries, keys, values = queries[None], keys[None], values[None]
        mask, shared = None if seen is None else seen.unsqueeze(-3), self.shape.kv_heads != self.shape.heads
        found = nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=shared)
        output: Tensor = self.o_proj((found[0] if flat else found).transpose(-3, -2).flatten(-2))
        return output


class GlideLayer(DecoderLayer):
    """A decoder layer with cross-attention before its MLP."""

    def __init__(self, shape: LayerShape, cross: CrossShape) -> None:
        super().__init__(shape)
        self.cross_attn = CrossAttention(shape.hidden, cross)


class GlideHead(nn.Module, Head, TextHead):
    """The weights, named as in the authors' checkpoints without `model.`."""

    taps = ()
    depth = None
    ids = None

    def __init__(self, shape: LayerShape, cross: CrossShape, *, vocabulary: int) -> None:
        """Build a head with random weights.

        Args:
            shape: of its layer.
            cross: of the target's attention.
            vocabulary: V of the target.
        """
        super().__init__()
        self.shape, self.cross = shape, cross
        self.embed_tokens = nn.Embedding(vocabulary, shape.hidden)
        self.layers = nn.ModuleList([GlideLayer(shape, cross)])
        self.norm = RMSNorm(shape.hidden, shape.eps)
        self.lm_head = nn.Linear(shape.hidden, vocabulary, bias=False)
        self.rotary = Rotary(shape)

    def open(self, first: int, target: TargetParts) -> HeadState:
        raise UsageError("this head reads text; open it by `open_text`.")

    def open_text(self, tokens: Sequence[int], target: TargetParts, cache: TargetCache | None) -> HeadState:
        if cache is None:
            raise UnsupportedError("GLIDE reads the target's keys and values, whose cache was not lent.")
        return GlideState(self, tokens, cache)

    @property
    def layer(self) -> GlideLayer:
        """The only layer."""
        layer = self.layers[0]
        assert isinstance(layer, GlideLayer)
        return layer

    def keys_values(self, ids: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return its own keys and values [..., H, n, d] of tokens Int64[..., n]."""
        x = self.embed_tokens(ids)
        return self.layer.self_attn.keys_values(self.layer.attention_input(x), self.rotary.angles(positions, x))

    def logits(
        self,
        ids: Tensor,
        positions: Tensor,
        own: tuple[Tensor, Tensor, Tensor | None],
        target: tuple[Tensor, Tensor, Tensor | None],
    ) -> Tensor:
        """Return the logits [..., n, V] after tokens Int64[..., n].

        Args:
            ids: the tokens.
            positions: of the tokens.
            own: keys, values and what each token sees of them, Bool[..., n, m] or None for all.
            target: the same of the target's.
        """
        layer, x = self.layer, self.embed_tokens(ids)
        queries = layer.self_attn.queries(layer.attention_input(x), self.rotary.angles(positions, x))
        x = x + layer.self_attn.attend(queries, *own)
        found: Tensor = self.lm_head(self.norm(layer.finish(x, layer.cross_attn(x, positions, *target))))
        return found


class GlideState(HeadState):
    """One text: the rows of its tokens, the root's included, and the target's cache."""

    def __init__(self, head: GlideHead, tokens: Sequence[int], cache: TargetCache) -> None:
        self._head, self._target = head, cache
        self._text, self._cache = list(tokens[:1]), HeadCache(1)

    @property
    def length(self) -> int:
        return len(self._text) - 1

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        self._text += following.tolist()
        new = self._ids(self._text[self._cache.length :])
        positions, _ = self._cache.commit(len(new), new.device)
        self._cache.append(0, *self._head.keys_values(new, positions))

    def start(self) -> Tensor:
        root = self._cache.length - 1
        ids = self._ids(self._text[-1:])
        own = self._cache.rows(0)
        positions = torch.tensor([root], device=ids.device)
        return self._head.logits(ids, positions, (*own, None), (*self._target.layer_rows(-1), None))

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        ids = self._ids(tokens)
        positions, seen = self._cache.branch(above, ids.device)
        own = self._cache.append(0, *self._head.keys_values(ids, positions))
        return self._head.logits(ids, positions, (*own, seen), (*self._target.layer_rows(-1), None))

    def drop(self) -> None:
        self._cache.drop()

    def crop(self, length: int) -> None:
        del self._text[length + 1 :]
        self._cache.crop(length + 1)

    def _ids(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor(list(tokens), device=self._head.lm_head.weight.device)


def target_cross_shape(target: TargetParts, *, block: int = 5) -> CrossShape:
    """Return the shape of a target's attention, of its config.

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
