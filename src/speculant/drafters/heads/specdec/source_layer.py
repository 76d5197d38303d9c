"""A decoder layer with cross-attention to the states of an encoder, between its self-attention and its MLP."""

from __future__ import annotations

from torch import Tensor, nn

from speculant.drafters.heads.layers import Attention, DecoderLayer, LayerShape, RMSNorm


class SourceAttention(Attention):
    """Attention over the states of a source; neither queries nor keys have positions, which the states contain."""

    def __init__(self, shape: LayerShape, source: int) -> None:
        """Build the attention of a layer; `source` is S, the size of the states."""
        super().__init__(shape)
        size = shape.kv_heads * shape.head_dim
        self.k_proj, self.v_proj = nn.Linear(source, size, bias=False), nn.Linear(source, size, bias=False)

    def keys_values_of(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values [..., H_kv, n, d] of states [..., n, S]."""
        return self._split(self.k_proj(states)), self._split(self.v_proj(states))

    def queries_of(self, x: Tensor) -> Tensor:
        """Return queries [..., H, n, d] for x [..., n, D]."""
        return self._split(self.q_proj(x))


class SourceLayer(DecoderLayer):
    """A pre-norm decoder layer that also reads a source."""

    def __init__(self, shape: LayerShape, source: int) -> None:
        """Build a layer; `source` is S, the size of the encoder's states."""
        super().__init__(shape)
        self.cross_norm, self.cross_attn = RMSNorm(shape.hidden, shape.eps), SourceAttention(shape, source)

    def read(self, x: Tensor, keys: Tensor, values: Tensor, seen: Tensor | None) -> Tensor:
        """Return what rows x [..., n, D] read of a source, [..., n, D].

        Args:
            x: residual stream after the self-attention.
            keys, values: [..., H_kv, m, d] of the source.
            seen: Bool[..., 1, m], its positions that are not padding; None for all.
        """
        return self.cross_attn.attend(self.cross_attn.queries_of(self.cross_norm(x)), keys, values, seen)
