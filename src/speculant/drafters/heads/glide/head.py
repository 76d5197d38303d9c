"""GLIDE: a small decoder layer that attends to its own text and to the target's last keys and values.

Du, Jiang et al.: "GliDe with a CaPE: A Low-Hassle Method to Accelerate Speculative Decoding", ICML 2024, arXiv
2402.02082. The layer has self-attention, then cross-attention to what the target's top layer has cached for committed
tokens (keys are rotated already, so queries are rotated like the target's), then its MLP. Its own keys and values
depend only on the tokens, so those of drafted tokens stay valid when the tokens are accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from speculant.core.engine import TargetCache
from speculant.core.errors import UnsupportedError, UsageError
from speculant.drafters.heads.cache import HeadCache
from speculant.drafters.heads.head import Head, HeadState, TargetParts, TextHead
from speculant.drafters.heads.layers import DecoderLayer, LayerShape, RMSNorm, Rotary, joined, rotated


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

    def queries(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return rotated queries [..., H, n, d] for x [..., n, D]."""
        found = self.q_proj(x).reshape(*x.shape[:-1], -1, self.shape.head_dim).transpose(-3, -2)
        return rotated(found, self._rotary.angles(positions, x))

    def weigh(self, queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor | None) -> Tensor:
        """Return [..., n, H * d], before the output projection, over keys [..., H_kv, m, d]; `seen` Bool[..., n, m]."""
        keys, values, flat = keys.to(queries.dtype), values.to(queries.dtype), queries.ndim == 3
        if flat:
            queries, keys, values = queries[None], keys[None], values[None]
        mask, shared = None if seen is None else seen.unsqueeze(-3), self.shape.kv_heads != self.shape.heads
        found = nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=shared)
        return (found[0] if flat else found).transpose(-3, -2).flatten(-2)


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
            shape: shape of its layer.
            cross: shape of the target's attention.
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
        raise UsageError("this head reads text; open it with `open_text`.")

    def open_text(self, tokens: Sequence[int], target: TargetParts, cache: TargetCache | None) -> HeadState:
        if cache is None:
            raise UnsupportedError("GLIDE reads the target's keys and values, but was not given its cache.")
        return GlideState(self, tokens, cache)

    def extend_all(self, states: Sequence[HeadState], hidden: Sequence[Tensor], following: Sequence[Tensor]) -> None:
        extend_texts(_select_own(states), following)

    def start_all(self, states: Sequence[HeadState]) -> list[Tensor]:
        return start_texts(_select_own(states))

    def grow_all(
        self, states: Sequence[HeadState], tokens: Sequence[Sequence[int]], above: Sequence[Sequence[int]]
    ) -> list[Tensor]:
        return grow_texts(_select_own(states), tokens, above)

    @property
    def layer(self) -> GlideLayer:
        """The only layer."""
        layer = self.layers[0]
        assert isinstance(layer, GlideLayer)
        return layer

    def keys_values(self, ids: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return its own keys and values [..., H, n, d] for tokens Int64[..., n]."""
        x = self.embed_tokens(ids)
        return self.layer.self_attn.keys_values(self.layer.attention_input(x), self.rotary.angles(positions, x))

    def logits(
        self,
        ids: Tensor,
        positions: Tensor,
        attend: Callable[[Tensor], Tensor],
        cross: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Return the logits [..., n, V] after tokens Int64[..., n].

        Args:
            ids: the tokens.
            positions: positions of the tokens.
            attend: returns its own attention's output before projection, [..., n, H * d], for queries [..., H, n, d].
            cross: returns the same for the attention to the target's keys.
        """
        layer, x = self.layer, self.embed_tokens(ids)
        queries = layer.self_attn.queries(layer.attention_input(x), self.rotary.angles(positions, x))
        x = x + layer.self_attn.o_proj(attend(queries))
        crossed = layer.cross_attn.o_proj(cross(layer.cross_attn.queries(x, positions)))
        found: Tensor = self.lm_head(self.norm(layer.finish(x, crossed)))
        return found


class GlideState(HeadState):
    """State of one text.

    Attributes:
        head: the head.
        target: the target's cache.
        cache: rows of its tokens, including the root's.
    """

    def __init__(self, head: GlideHead, tokens: Sequence[int], cache: TargetCache) -> None:
        self.head, self.target = head, cache
        self._text, self.cache = list(tokens[:1]), HeadCache(1)

    @property
    def length(self) -> int:
        return len(self._text) - 1

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        extend_texts([self], [following])

    def start(self) -> Tensor:
        [logits] = start_texts([self])
        return logits

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        [logits] = grow_texts([self], [tokens], [above])
        return logits

    def take(self, following: Tensor) -> list[int]:
        """Add committed tokens Int64[n]; return the tokens of the text that have no rows."""
        self._text += following.tolist()
        return self._text[self.cache.length :]

    @property
    def root(self) -> int:
        """The newest token."""
        return self._text[-1]

    def drop(self) -> None:
        self.cache.drop()

    def crop(self, length: int) -> None:
        del self._text[length + 1 :]
        self.cache.crop(length + 1)


def extend_texts(states: Sequence[GlideState], following: Sequence[Tensor]) -> None:
    """Append rows of committed tokens to texts of one head."""
    head, new = states[0].head, [state.take(own) for state, own in zip(states, following, strict=True)]
    ids = _ids(head, new)
    positions = [state.cache.commit(len(own), ids.device)[0] for state, own in zip(states, new, strict=True)]
    _append(states, head.keys_values(ids, joined(positions)), [len(own) for own in new])


def start_texts(states: Sequence[GlideState]) -> list[Tensor]:
    """Return the logits [1, V] after the root of each text of one head."""
    ids = _ids(states[0].head, [[state.root] for state in states])
    positions = torch.tensor([state.cache.length - 1 for state in states], device=ids.device)
    return _logits(states, ids, positions, [state.cache.rows(0) for state in states], [None] * len(states))


def grow_texts(
    states: Sequence[GlideState], tokens: Sequence[Sequence[int]], above: Sequence[Sequence[int]]
) -> list[Tensor]:
    """Append draft rows to texts of one head; takes the arguments of `grow` for each text."""
    head, ids = states[0].head, _ids(states[0].head, tokens)
    branched = [state.cache.branch(own, ids.device) for state, own in zip(states, above, strict=True)]
    positions, seen = zip(*branched, strict=True)
    held = _append(states, head.keys_values(ids, joined(positions)), [len(own) for own in tokens])
    return _logits(states, ids, joined(positions), held, seen)


def _append(
    states: Sequence[GlideState], added: tuple[Tensor, Tensor], sizes: list[int]
) -> list[tuple[Tensor, Tensor]]:
    """Append keys and values [H, n, d] of rows, `sizes` per text; return those of all rows, by text."""
    keys, values = (torch.split(each, sizes, dim=-2) for each in added)
    return [state.cache.append(0, *own) for state, *own in zip(states, keys, values, strict=True)]


def _logits(
    states: Sequence[GlideState],
    ids: Tensor,
    positions: Tensor,
    held: Sequence[tuple[Tensor, Tensor]],
    seen: Sequence[Tensor | None],
) -> list[Tensor]:
    """Return the logits [n, V] after tokens Int64[n] of several texts, by text.

    Args:
        states: states of the texts.
        ids: the tokens, text by text.
        positions: positions of the tokens.
        held: keys and values of each text.
        seen: rows that each token of a text sees; None for one token that sees all.
    """
    sizes = [1 if own is None else len(own) for own in seen]
    targets = [state.target.layer_rows(-1) for state in states]

    def attend(queries: Tensor) -> Tensor:
        return states[0].head.layer.self_attn.weigh_apart(queries, held, seen, sizes)

    def cross(queries: Tensor) -> Tensor:
        own = zip(torch.split(queries, sizes, dim=-2), targets, strict=True)
        return joined([states[0].head.layer.cross_attn.weigh(each, *rows, None) for each, rows in own])

    return [*torch.split(states[0].head.logits(ids, positions, attend, cross), sizes)]


def _ids(head: GlideHead, tokens: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor([token for own in tokens for token in own], device=head.lm_head.weight.device)


def _select_own(states: Sequence[HeadState]) -> list[GlideState]:
    return [state for state in states if isinstance(state, GlideState)]


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
