"""The parts of Gemma 4 assistants, named as in their checkpoints.

Their attention has only queries: the keys and values are those that the target has cached. All rows of a draft are at
one position and see the same keys, so they are independent of each other and need no mask. Rows of several texts share
the matrix products, and attend separately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from speculant.drafters.heads.layers import Linear, RMSNorm, join_tensors, rotate_rows


@dataclass(frozen=True, slots=True, eq=False)
class SeenRows:
    """What queries at one position see in one kind of layer.

    Attributes:
        keys, values: [H_kv, m, d].
        angles: cos and sin [1, d] of the position.
        count: number of queries, which are the rows of one text.
    """

    keys: Tensor
    values: Tensor
    angles: tuple[Tensor, Tensor]
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLayer:
    """The cached keys and values that layers of one kind of attention read.

    Attributes:
        layer: index of the target's layer that they belong to.
        kv_heads, head_dim: their sizes.
        frequencies: Float32[head_dim / 2] of the rotary embedding.
        scale: factor for cos and sin.
        window: number of positions that a query sees, including its own; None for all.
    """

    layer: int
    kv_heads: int
    head_dim: int
    frequencies: Tensor = field(compare=False)
    scale: float = 1.0
    window: int | None = None

    def seen(self, position: int) -> slice:
        """Return the slice of tokens before a position that a query there sees."""
        return slice(0 if self.window is None else max(0, position - self.window + 1), position)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantShape:
    """The sizes of an assistant.

    Attributes:
        hidden: size of its layers.
        target_hidden: D, size of the target.
        inner: inner size of its MLPs.
        heads: number of query heads.
        vocabulary: V.
        kinds: attention kinds of its layers, in order.
        read: what the layers of each kind read.
        eps: epsilon of its norms.
        cap: cap of its logits, cap * tanh(logits / cap); None for none.
        centroids: number of clusters of the vocabulary; 0 if it is not divided.
        best: number of clusters whose tokens get logits.
    """

    hidden: int
    target_hidden: int
    inner: int
    heads: int
    vocabulary: int
    kinds: tuple[str, ...]
    read: Mapping[str, ReadLayer]
    eps: float = 1e-6
    cap: float | None = None
    centroids: int = 0
    best: int = 0


class WideNorm(RMSNorm):
    """The RMS norm of Gemma 4, whose weights multiply in float32."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(x.dtype)


class QueryAttention(nn.Module):
    """Attention to cached keys and values."""

    def __init__(self, shape: AssistantShape, kind: str) -> None:
        super().__init__()
        self._heads, self._dim = shape.heads, shape.read[kind].head_dim
        self.q_proj = nn.Linear(shape.hidden, self._heads * self._dim, bias=False)
        self.q_norm = WideNorm(self._dim, shape.eps)
        self.o_proj = nn.Linear(self._heads * self._dim, shape.hidden, bias=False)

    def forward(self, x: Tensor, texts: Sequence[SeenRows], linear: Linear) -> Tensor:
        """Return [n, D'] for x [n, D'], text by text, over what its queries see; scores are not scaled."""
        queries = self.q_norm(linear(self.q_proj, x).reshape(len(x), self._heads, self._dim))
        apart = torch.split(queries, [rows.count for rows in texts])
        found = join_tensors([self._attend(own, rows) for own, rows in zip(apart, texts, strict=True)])
        return linear(self.o_proj, found)

    def _attend(self, queries: Tensor, rows: SeenRows) -> Tensor:
        """Return [n, H * d] for the queries [n, H, d] of one text."""
        rotated = rotate_rows(queries.transpose(0, 1), rows.angles)
        grouped = rotated.reshape(len(rows.keys), -1, self._dim)  # by key head
        keys, values = rows.keys[None], rows.values[None]
        found = nn.functional.scaled_dot_product_attention(grouped[None], keys, values, scale=1.0)[0]
        return found.reshape(self._heads, len(queries), self._dim).transpose(0, 1).flatten(1)


class GeluMLP(nn.Module):
    """The gated MLP of Gemma."""

    def __init__(self, shape: AssistantShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.down_proj = nn.Linear(shape.inner, shape.hidden, bias=False)

    def forward(self, x: Tensor, linear: Linear) -> Tensor:
        gate = nn.functional.gelu(linear(self.gate_proj, x), approximate="tanh")
        return linear(self.down_proj, gate * linear(self.up_proj, x))


class AssistantLayer(nn.Module):
    """A decoder layer with norms before and after its attention and its MLP, and a factor on its output."""

    def __init__(self, shape: AssistantShape, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.self_attn, self.mlp = QueryAttention(shape, kind), GeluMLP(shape)
        self.input_layernorm = WideNorm(shape.hidden, shape.eps)
        self.post_attention_layernorm = WideNorm(shape.hidden, shape.eps)
        self.pre_feedforward_layernorm = WideNorm(shape.hidden, shape.eps)
        self.post_feedforward_layernorm = WideNorm(shape.hidden, shape.eps)
        self.layer_scalar: Tensor
        self.register_buffer("layer_scalar", torch.ones(1))

    def forward(self, x: Tensor, texts: Sequence[SeenRows], linear: Linear) -> Tensor:
        """Return its output [n, D'] for x [n, D']; takes the arguments of its attention."""
        attended = self.self_attn(self.input_layernorm(x), texts, linear)
        x = x + self.post_attention_layernorm(attended)
        x = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x), linear))
        return torch.mul(x, self.layer_scalar)


class Clusters(nn.Module):
    """A vocabulary divided into clusters of equal size, of which only the most promising get logits."""

    def __init__(self, shape: AssistantShape) -> None:
        super().__init__()
        self.centroids = nn.Linear(shape.hidden, shape.centroids, bias=False)
        self.token_ordering: Tensor  # Int64[V], the tokens, cluster by cluster
        self.register_buffer("token_ordering", torch.arange(shape.vocabulary))
        self._best = shape.best

    def forward(self, x: Tensor, weight: Tensor, linear: Linear) -> tuple[Tensor, Tensor]:
        """Return the logits [n, m] of the best clusters' tokens, and these tokens Int64[n, m].

        Args:
            x: [n, D'].
            weight: [V, D'], output weights of all tokens.
            linear: function that applies a linear layer.
        """
        best = linear(self.centroids, x).topk(self._best, dim=-1).indices
        tokens = self.token_ordering.view(len(self.centroids.weight), -1)[best].flatten(1)
        return torch.einsum("nd,nmd->nm", x, weight[tokens]), tokens
