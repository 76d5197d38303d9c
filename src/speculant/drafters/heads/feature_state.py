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

_ROOM = 64  # rows of a draft that need no larger buffer
_FEW = 16  # committed rows that code runs whole, though only the last one's output is wanted


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
        self._codes = [target.layer_code(head.layer(index)) for index in range(len(head.layers))]
        # [room, D], what rows pass on to those below them: the last committed one, then those of the draft.
        self._passed: Tensor | None = None

    @property
    def length(self) -> int:
        return self._cache.length

    @property
    def _last(self) -> Tensor:
        """What the last committed row passes on, [1, D]."""
        assert self._passed is not None
        return self._passed[:1]

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        features = self._head.features(hidden, self._target)
        positions, seen = self._cache.commit(len(features), features.device)
        embeddings = self._head.embed(following, self._target)
        self._pass_on(self._run(embeddings, features, positions, seen, last=True), 0)

    def start(self) -> Tensor:
        return self._head.logits(self._last, self._target)

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        assert self._passed is not None
        device, first = self._passed.device, self._cache.drafted + 1
        if len(above) == 1:
            features = self._passed[above[0] + 1 : above[0] + 2]
        else:
            features = self._passed[torch.tensor(above, device=device) + 1]
        positions, seen = self._cache.branch(above, device)
        embeddings = self._head.embed(torch.tensor(tokens, device=device), self._target)
        found = self._run(embeddings, features, positions, seen)
        self._pass_on(found, first)
        return self._head.logits(found, self._target)

    def drop(self) -> None:
        self._cache.drop()

    def crop(self, length: int) -> None:
        self._cache.crop(length)
        self._passed = None

    def _pass_on(self, rows: Tensor, first: int) -> None:
        """Keep what rows pass on, from a place on."""
        end, held = first + len(rows), self._passed
        if held is None or len(held) < end:
            self._passed = rows.new_empty(2 * end + _ROOM, rows.shape[1])
            if held is not None:
                self._passed[:first] = held[:first]
        assert self._passed is not None
        self._passed[first:end] = rows

    def _run(
        self, embeddings: Tensor, features: Tensor, positions: Tensor, seen: Tensor | None, *, last: bool = False
    ) -> Tensor:
        """Run new rows through all layers; return what they, or the last one alone, pass on."""
        head, cache, x = self._head, self._cache, features
        angles = head.rotary.looked_up(positions, cache.length + cache.drafted, features)
        for index in range(len(head.layers)):
            layer, ends = head.layer(index), last and index == len(head.layers) - 1
            residual, given = head.layer_input(index, embeddings, x)
            found = self._run_code(index, residual, given, angles, seen) if not ends or len(given) <= _FEW else None
            if found is not None:
                x = found[-1:] if ends else found
                continue
            keys, values = cache.append(index, *layer.self_attn.keys_values(given, angles))
            mask, turned = seen, angles
            if ends:
                residual, given, mask, turned = residual[-1:], given[-1:], None, (angles[0][-1:], angles[1][-1:])
            queries = layer.self_attn.queries(given, turned)
            x = layer.finish(residual, layer.self_attn.attend(queries, keys, values, mask))
        return head.carried(x)

    def _run_code(
        self, index: int, residual: Tensor, given: Tensor, angles: tuple[Tensor, Tensor], seen: Tensor | None
    ) -> Tensor | None:
        """Run new rows through a layer by the target's code; return None where it has none for these."""
        code = self._codes[index]
        if code is None or len(given) > code.most:
            return None
        shape = self._head.layer(index).self_attn.shape
        rows = self._cache.reserve(index, len(given), (shape.kv_heads, shape.head_dim), residual)
        return code(residual, given, angles, *rows, seen)
