"""Heads of one or more decoder layers that carry a hidden state from token to token: EAGLE's family.

Row i reads a feature of token i and the embedding of token i + 1, and its output gives the logits of token i + 2. Rows
of committed tokens always read the target's true states; rows of a draft read the output of the row above them. After
a round the rows of the draft are dropped and those of accepted tokens computed anew (heads that kept drafted rows
would draft 8 to 15 % worse, vLLM issue 14649).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from speculant.drafters.heads.cache import HeadCache
from speculant.drafters.heads.head import Head, HeadState, TargetParts
from speculant.drafters.heads.layers import DecoderLayer, Rotary


class FeatureHead(Head, Protocol):
    """A head whose rows are decoder layers over a feature and an embedding.

    Attributes:
        layers: of the class DecoderLayer.
        rotary: of all layers.
    """

    layers: nn.ModuleList
    rotary: Rotary

    @abstractmethod
    def embed(self, ids: Tensor, target: TargetParts) -> Tensor:
        """Return the embeddings [..., D] of tokens Int64[...]."""

    @abstractmethod
    def features(self, hidden: Tensor, target: TargetParts) -> Tensor:
        """Return the features [..., D] of tokens from the target's states [..., L', D'] at them."""

    @abstractmethod
    def layer_input(self, index: int, embeddings: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residual stream [..., D] of a layer and what its attention reads, [..., D] or [..., 2D].

        Args:
            index: of the layer.
            embeddings: [..., D], of the next tokens.
            x: [..., D], the features, or the output of the layer below.
        """

    @abstractmethod
    def carried(self, x: Tensor) -> Tensor:
        """Return the features [..., D] of the next row, from the last layer's output."""

    @abstractmethod
    def logits(self, features: Tensor, target: TargetParts) -> Tensor:
        """Return the logits [..., V'] from what `carried` returned."""

    def layer(self, index: int) -> DecoderLayer:
        """Return a decoder layer."""
        layer = self.layers[index]
        assert isinstance(layer, DecoderLayer)
        return layer


class FeatureState(HeadState):
    """One text on such a head."""

    def __init__(self, head: FeatureHead, target: TargetParts, first: int) -> None:
        """Begin a text whose tokens before the position `first` have no rows."""
        self._head, self._target = head, target
        self._cache = HeadCache(len(head.layers), first=first)
        self._last: Tensor | None = None  # [1, D], what the last committed row passes on
        self._drafted: Tensor | None = None  # [rows, D], what the rows of the draft pass on

    @property
    def length(self) -> int:
        return self._cache.length

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        features = self._head.features(hidden, self._target)
        positions, seen = self._cache.commit(len(features), features.device)
        embeddings = self._head.embed(following, self._target)
        self._last, self._drafted = self._run(embeddings, features, positions, seen, last=True), None

    def start(self) -> Tensor:
        assert self._last is not None
        return self._head.logits(self._last, self._target)

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        assert self._last is not None
        known = self._last if self._drafted is None else torch.cat([self._last, self._drafted])
        features = known[[row + 1 for row in above]]
        positions, seen = self._cache.branch(above, known.device)
        embeddings = self._head.embed(torch.tensor(tokens, device=known.device), self._target)
        found = self._run(embeddings, features, positions, seen)
        self._drafted = found if self._drafted is None else torch.cat([self._drafted, found])
        return self._head.logits(found, self._target)

    def drop(self) -> None:
        self._cache.drop()
        self._drafted = None

    def crop(self, length: int) -> None:
        self._cache.crop(length)
        self._last = self._drafted = None

    def _run(
        self, embeddings: Tensor, features: Tensor, positions: Tensor, seen: Tensor, *, last: bool = False
    ) -> Tensor:
        """Run new rows through all layers; return what they, or the last one alone, pass on."""
        x, angles = features, self._head.rotary.angles(positions, features)
        for index in range(len(self._head.layers)):
            layer = self._head.layer(index)
            residual, given = self._head.layer_input(index, embeddings, x)
            keys, values = self._cache.append(index, *layer.self_attn.keys_values(given, angles))
            if last and index == len(self._head.layers) - 1:
                residual, given, seen, angles = residual[-1:], given[-1:], seen[-1:], (angles[0][-1:], angles[1][-1:])
            queries = layer.self_attn.queries(given, angles)
            x = layer.finish(residual, layer.self_attn.attend(queries, keys, values, seen))
        return self._head.carried(x)
