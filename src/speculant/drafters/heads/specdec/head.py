"""SpecDec's drafter: a deep causal encoder of the text, and a shallow decoder that fills a block of masks in one pass.

Xia, Ge et al.: "Speculative Decoding: Exploiting Speculative Execution for Accelerating Seq2seq Generation", Findings
of EMNLP 2023, arXiv 2203.16487. Theirs is an encoder-decoder for translation: its decoder reads the source by
cross-attention, and the prefix of the output. Behind an encoder-decoder target, the source is what that target's
encoder has read, whose states every layer here attends to; the causal encoder reads the prefix. For a decoder-only
target, the text is both. The encoder reads it token by token and keeps its rows, and the decoder's layers attend to its
outputs and to the block, in both directions, in one attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from speculant.core.engine import TargetCache
from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.block import TextBlockState, UnconditionedBlockHead
from speculant.drafters.heads.cache import HeadCache
from speculant.drafters.heads.head import HeadState, SourceHead, TargetParts, TextHead
from speculant.drafters.heads.layers import Attention, DecoderLayer, LayerShape, RMSNorm, Rotary

JoinKeys = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]


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
    """A pre-norm decoder layer with cross-attention to a source, between its self-attention and its MLP."""

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


@dataclass(frozen=True, slots=True, eq=False)
class SourceRows:
    """What the layers read of a source.

    Attributes:
        rows: keys and values [..., H, n, d] of each layer; () for a head without a source.
        seen: Bool[..., 1, n], the positions of the source that are not padding; None for all.
    """

    rows: Sequence[tuple[Tensor, Tensor]] = ()
    seen: Tensor | None = None

    def of(self, texts: Tensor) -> SourceRows:
        """Return the sources of texts Int64[A] of a batch."""
        seen = None if self.seen is None else self.seen[texts]
        return SourceRows([(keys[texts], values[texts]) for keys, values in self.rows], seen)


NO_SOURCE = SourceRows()


class SpecDecHead(nn.Module, UnconditionedBlockHead, TextHead, SourceHead):
    """The weights. Layers are numbered consecutively: those of the encoder, then those of the decoder."""

    taps = ()
    ids = None

    def __init__(
        self, shape: LayerShape, *, vocabulary: int, encoder: int, decoder: int, block: int, source: int = 0
    ) -> None:
        """Build a head with random weights.

        Args:
            shape: shape of its layers.
            vocabulary: V of the target; its embeddings have one more token, the mask.
            encoder, decoder: numbers of layers; the paper has 12 and 2.
            block: K, masks per block; the paper has 25.
            source: S, size of the encoder's states of the target; 0 for a decoder-only target.
        """
        super().__init__()
        self.shape, self.vocabulary, self.depth, self.source = shape, vocabulary, block, source
        self.embed_tokens = nn.Embedding(vocabulary + 1, shape.hidden)
        self.encoder = nn.ModuleList([_new_layer(shape, source) for _ in range(encoder)])
        self.encoder_norm = RMSNorm(shape.hidden, shape.eps)
        self.decoder = nn.ModuleList([_new_layer(shape, source) for _ in range(decoder)])
        self.norm = RMSNorm(shape.hidden, shape.eps)
        self.lm_head = nn.Linear(shape.hidden, vocabulary, bias=False)
        self.rotary = Rotary(shape)

    def open_text(self, tokens: Sequence[int], target: TargetParts, cache: TargetCache | None) -> HeadState:
        if self.source:
            raise UnsupportedError("this head reads the states of its target's encoder, but was not given them.")
        return SpecDecState(self, tokens, NO_SOURCE)

    def open_source(self, tokens: Sequence[int], target: TargetParts, source: Tensor) -> HeadState:
        with torch.inference_mode():
            return SpecDecState(self, tokens, self.read_source(source.to(self.lm_head.weight)))

    def read_source(self, states: Tensor, seen: Tensor | None = None) -> SourceRows:
        """Return what all layers read of an encoder's states [..., n, S]; `seen` Bool[..., n] is False at padding."""
        layers = [each for each in (*self.encoder, *self.decoder) if isinstance(each, SourceLayer)]
        rows = [each.cross_attn.keys_values_of(states) for each in layers]
        return SourceRows(rows, None if seen is None else seen.unsqueeze(-2))

    def encode(
        self, ids: Tensor, positions: Tensor, join: JoinKeys, seen: Tensor | None, source: SourceRows = NO_SOURCE
    ) -> list[tuple[Tensor, Tensor]]:
        """Return the keys and values [..., H, n, d] that each decoder layer reads for tokens Int64[..., n].

        Args:
            ids: the tokens.
            positions: Int64[..., n].
            join: appends a layer's keys and values to those of earlier tokens, and returns all.
            seen: Bool[..., n, m], tokens that each may see; None for all.
            source: what the layers read of a source.
        """
        x = self.embed_tokens(ids)
        angles = self.rotary.angles(positions, x)
        for index in range(len(self.encoder)):
            x = self._run(index, x, angles, join, seen, source)
        memory = self.encoder_norm(x)
        return [_layer(self.decoder, index).self_attn.keys_values(memory, angles) for index in range(len(self.decoder))]

    def fill(
        self,
        positions: Tensor,
        join: JoinKeys,
        seen: Tensor | None,
        source: SourceRows = NO_SOURCE,
        shown: Tensor | None = None,
    ) -> Tensor:
        """Return the logits [..., K, V] of a block of masks at positions Int64[..., K].

        Args:
            positions: the positions.
            join: appends a layer's keys and values to those of the text, and returns all.
            seen: Bool[..., K, m], what each mask may see; None for all.
            source: what the layers read of a source.
            shown: Int64[..., K], tokens in place of masks, V where the mask stays; None for masks alone.
        """
        x = self.embed_tokens(torch.full_like(positions, self.vocabulary) if shown is None else shown)
        angles = self.rotary.angles(positions, x)
        for index in range(len(self.decoder)):
            x = self._run(len(self.encoder) + index, x, angles, join, seen, source)
        found: Tensor = self.lm_head(self.norm(x))
        return found

    def _run(
        self,
        index: int,
        x: Tensor,
        angles: tuple[Tensor, Tensor],
        join: JoinKeys,
        seen: Tensor | None,
        source: SourceRows,
    ) -> Tensor:
        below = index - len(self.encoder)
        layer = _layer(self.encoder, index) if below < 0 else _layer(self.decoder, below)
        given, attention = layer.attention_input(x), layer.self_attn
        keys, values = join(index, *attention.keys_values(given, angles))
        attended = attention.attend(attention.queries(given, angles), keys, values, seen)
        if isinstance(layer, SourceLayer):
            x = x + attended
            attended = layer.read(x, *source.rows[index], source.seen)
        return layer.finish(x, attended)


class SpecDecState(TextBlockState):
    """State of one text: rows of all its tokens, including the root, in both kinds of layers."""

    def __init__(self, head: SpecDecHead, tokens: Sequence[int], source: SourceRows) -> None:
        super().__init__(tokens)
        self._head, self._source = head, source
        self._cache = HeadCache(len(head.encoder) + len(head.decoder))

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        super().extend(hidden, following)
        head, cache = self._head, self._cache
        ids = torch.tensor(self.text[cache.length :], device=head.lm_head.weight.device)
        positions, seen = cache.commit(len(ids), ids.device)
        for index, rows in enumerate(head.encode(ids, positions, cache.append, seen, self._source)):
            cache.append(len(head.encoder) + index, *rows)

    def run_block(self) -> Tensor:
        head, cache = self._head, self._cache
        positions, _ = cache.branch(range(-1, head.depth - 1), head.lm_head.weight.device)
        try:
            return head.fill(positions, cache.append, None, self._source)
        finally:
            cache.drop()

    def crop(self, length: int) -> None:
        super().crop(length)
        self._cache.crop(length + 1)


def _new_layer(shape: LayerShape, source: int) -> DecoderLayer:
    return SourceLayer(shape, source) if source else DecoderLayer(shape)


def _layer(layers: nn.ModuleList, index: int) -> DecoderLayer:
    layer = layers[index]
    assert isinstance(layer, DecoderLayer)
    return layer
