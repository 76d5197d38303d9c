"""SpecDec's drafter: a deep causal encoder of the text, and a shallow decoder that fills a block of masks in one pass.

Xia, Ge et al.: "Speculative Decoding: Exploiting Speculative Execution for Accelerating Seq2seq Generation", Findings
of EMNLP 2023, arXiv 2203.16487. Theirs is an encoder-decoder for translation, whose decoder reads the source and the
prefix of the output. For a decoder-only target, the text is both: the encoder reads it token by token and keeps its
rows, and the decoder's layers attend to its outputs and to the block, in both directions, in one attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from speculant.core.engine import TargetCache
from speculant.core.errors import UsageError
from speculant.drafters.heads.block import TextBlockState
from speculant.drafters.heads.cache import HeadCache
from speculant.drafters.heads.head import Head, HeadState, TargetParts, TextHead
from speculant.drafters.heads.layers import DecoderLayer, LayerShape, RMSNorm, Rotary

JoinKeys = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]


class SpecDecHead(nn.Module, Head, TextHead):
    """The weights. Layers are numbered consecutively: those of the encoder, then those of the decoder."""

    taps = ()
    ids = None

    def __init__(self, shape: LayerShape, *, vocabulary: int, encoder: int, decoder: int, block: int) -> None:
        """Build a head with random weights.

        Args:
            shape: shape of its layers.
            vocabulary: V of the target; its embeddings have one more token, the mask.
            encoder, decoder: numbers of layers; the paper has 12 and 2.
            block: K, masks per block; the paper has 25.
        """
        super().__init__()
        self.shape, self.vocabulary, self.depth = shape, vocabulary, block
        self.embed_tokens = nn.Embedding(vocabulary + 1, shape.hidden)
        self.encoder = nn.ModuleList([DecoderLayer(shape) for _ in range(encoder)])
        self.encoder_norm = RMSNorm(shape.hidden, shape.eps)
        self.decoder = nn.ModuleList([DecoderLayer(shape) for _ in range(decoder)])
        self.norm = RMSNorm(shape.hidden, shape.eps)
        self.lm_head = nn.Linear(shape.hidden, vocabulary, bias=False)
        self.rotary = Rotary(shape)

    def open(self, first: int, target: TargetParts) -> HeadState:
        raise UsageError("this head reads text; open it with `open_text`.")

    def open_text(self, tokens: Sequence[int], target: TargetParts, cache: TargetCache | None) -> HeadState:
        return SpecDecState(self, tokens)

    def encode(
        self, ids: Tensor, positions: Tensor, join: JoinKeys, seen: Tensor | None
    ) -> list[tuple[Tensor, Tensor]]:
        """Return the keys and values [..., H, n, d] that each decoder layer reads for tokens Int64[..., n].

        Args:
            ids: the tokens.
            positions: Int64[..., n].
            join: appends an encoder layer's keys and values to those of earlier tokens, and returns all.
            seen: Bool[..., n, m], tokens that each may see; None for all.
        """
        x = self.embed_tokens(ids)
        angles = self.rotary.angles(positions, x)
        for index in range(len(self.encoder)):
            x = self._run(self.encoder, index, x, angles, join, seen)
        memory = self.encoder_norm(x)
        return [_layer(self.decoder, index).self_attn.keys_values(memory, angles) for index in range(len(self.decoder))]

    def fill(self, positions: Tensor, join: JoinKeys, seen: Tensor | None) -> Tensor:
        """Return the logits [..., K, V] of a block of masks at positions Int64[..., K].

        Args:
            positions: the positions.
            join: appends a decoder layer's keys and values to those of the text, and returns all.
            seen: Bool[..., K, m], what each mask may see; None for all.
        """
        x = self.embed_tokens(torch.full_like(positions, self.vocabulary))
        angles = self.rotary.angles(positions, x)
        for index in range(len(self.decoder)):
            x = self._run(self.decoder, index, x, angles, join, seen)
        found: Tensor = self.lm_head(self.norm(x))
        return found

    @staticmethod
    def _run(
        layers: nn.ModuleList,
        index: int,
        x: Tensor,
        angles: tuple[Tensor, Tensor],
        join: JoinKeys,
        seen: Tensor | None,
    ) -> Tensor:
        layer = _layer(layers, index)
        given, attention = layer.attention_input(x), layer.self_attn
        keys, values = join(index, *attention.keys_values(given, angles))
        return layer.finish(x, attention.attend(attention.queries(given, angles), keys, values, seen))


class SpecDecState(TextBlockState):
    """State of one text: rows of all its tokens, including the root, in both kinds of layers."""

    def __init__(self, head: SpecDecHead, tokens: Sequence[int]) -> None:
        super().__init__(tokens)
        self._head = head
        self._cache = HeadCache(len(head.encoder) + len(head.decoder))

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        super().extend(hidden, following)
        head, cache = self._head, self._cache
        ids = torch.tensor(self.text[cache.length :], device=head.lm_head.weight.device)
        positions, seen = cache.commit(len(ids), ids.device)
        for index, rows in enumerate(head.encode(ids, positions, cache.append, seen)):
            cache.append(len(head.encoder) + index, *rows)

    def run_block(self) -> Tensor:
        head, cache = self._head, self._cache
        first = len(head.encoder)
        positions, _ = cache.branch(range(-1, head.depth - 1), head.lm_head.weight.device)
        try:
            return head.fill(positions, lambda index, *rows: cache.append(first + index, *rows), None)
        finally:
            cache.drop()

    def crop(self, length: int) -> None:
        super().crop(length)
        self._cache.crop(length + 1)


def _layer(layers: nn.ModuleList, index: int) -> DecoderLayer:
    layer = layers[index]
    assert isinstance(layer, DecoderLayer)
    return layer
