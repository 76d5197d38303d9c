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
from speculant.drafters.heads.step import StepParts, StepRows

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
    def step_parts(self) -> StepParts:
        """Return what `layer_input`, the layers, `carried` and `logits` are made of."""

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
        self._code = target.step_code(head.step_parts())
        # [room, D], what rows pass on to those below them: the last committed one, then those of the draft.
        self._passed: Tensor | None = None
        self._root: Tensor | None = None  # [1, V'], the logits after the last committed row

    @property
    def length(self) -> int:
        return self._cache.length

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        features = self._head.features(hidden, self._target)
        placed = self._cache.commit(len(features), features.device)
        embeddings = self._head.embed(following, self._target)
        self._root = self.run_rows(embeddings, features, None, placed, 0, last=True)

    def start(self) -> Tensor:
        assert self._root is not None
        return self._root

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        assert self._passed is not None
        device, first = self._passed.device, self._cache.drafted + 1
        places = torch.tensor([row + 1 for row in above], device=device)
        placed = self._cache.branch(above, device)
        embeddings = self._head.embed(torch.tensor(tokens, device=device), self._target)
        return self.run_rows(embeddings, self._passed, places, placed, first)

    def drop(self) -> None:
        self._cache.drop()

    def crop(self, length: int) -> None:
        self._cache.crop(length)
        self._passed = self._root = None

    def run_rows(
        self,
        embeddings: Tensor,
        features: Tensor,
        places: Tensor | None,
        placed: tuple[Tensor, Tensor | None],
        first: int,
        *,
        last: bool = False,
    ) -> Tensor:
        """Run new rows through all layers and keep what they pass on.

        Args:
            embeddings: [n, D].
            features: [..., D].
            places: Int64[n], which of the features each row reads; None for one after the other.
            placed: what the cache returned of the rows: positions, and whom each sees.
            first: the place from which on it is kept.
            last: whether only the last row is wanted.

        Returns:
            The logits [n, V'] after the rows, [1, V'] after the last one.
        """
        rows = len(embeddings)
        passed = self._places(first, 1 if last else rows, features)
        code = self._code
        if code is not None and rows <= (min(_FEW, code.most) if last else code.most):
            shape, cache = self._head.layer(0).self_attn.shape, self._cache
            each = (shape.kv_heads, shape.head_dim)
            held = [cache.reserve(index, rows, each, embeddings) for index in range(len(self._head.layers))]
            end, positions = held[0][2], cache.length + cache.drafted
            found = code(
                StepRows(
                    embeddings, features, places, placed[0], positions, placed[1],
                    tuple((keys, values) for keys, values, _ in held), end, passed,
                )
            )  # fmt: skip
            if found is not None:
                return found
        passed[:] = self._run(embeddings, features if places is None else features[places], *placed, last=last)
        return self._head.logits(passed, self._target)

    def _places(self, first: int, count: int, like: Tensor) -> Tensor:
        """Return the places of what rows pass on, [count, D], from one on."""
        end, held = first + count, self._passed
        if held is None or len(held) < end:
            self._passed = like.new_empty(2 * end + _ROOM, like.shape[-1])
            if held is not None:
                self._passed[:first] = held[:first]
        assert self._passed is not None
        return self._passed[first:end]

    def _run(
        self, embeddings: Tensor, features: Tensor, positions: Tensor, seen: Tensor | None, *, last: bool
    ) -> Tensor:
        """Run new rows through all layers; return what they, or the last one alone, pass on."""
        head, cache, x = self._head, self._cache, features
        angles = head.rotary.looked_up(positions, cache.length + cache.drafted, features)
        for index in range(len(head.layers)):
            layer = head.layer(index)
            residual, given = head.layer_input(index, embeddings, x)
            keys, values = cache.append(index, *layer.self_attn.keys_values(given, angles))
            mask, turned = seen, angles
            if last and index == len(head.layers) - 1:
                residual, given, mask, turned = residual[-1:], given[-1:], None, (angles[0][-1:], angles[1][-1:])
            queries = layer.self_attn.queries(given, turned)
            x = layer.finish(residual, layer.self_attn.attend(queries, keys, values, mask))
        return head.carried(x)
