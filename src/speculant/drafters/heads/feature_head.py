"""Heads of one or more decoder layers that pass a hidden state from token to token: EAGLE's family.

Row i reads a feature of token i and the embedding of token i + 1, and its output gives the logits of token i + 2. Rows
of committed tokens always read the target's true states; rows of a draft read the output of their parent row.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from torch import Tensor, nn

from speculant.drafters.heads.head import Head, TargetParts
from speculant.drafters.heads.layers import DecoderLayer, Rotary
from speculant.drafters.heads.step import StepParts


class FeatureHead(Head, Protocol):
    """A head whose rows are decoder layers over a feature and an embedding.

    Attributes:
        layers: modules of the class DecoderLayer.
        rotary: rotary embedding of all layers.
    """

    layers: nn.ModuleList
    rotary: Rotary

    @abstractmethod
    def embed(self, ids: Tensor, target: TargetParts) -> Tensor:
        """Return the embeddings [..., D] of tokens Int64[...]."""

    @abstractmethod
    def features(self, hidden: Tensor, target: TargetParts) -> Tensor:
        """Return the features [..., D] of tokens, from the target's states [..., L', D'] at these tokens."""

    @abstractmethod
    def layer_input(self, index: int, embeddings: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return a layer's residual stream [..., D], and the input of its attention, [..., D] or [..., 2D].

        Args:
            index: index of the layer.
            embeddings: [..., D], embeddings of the next tokens.
            x: [..., D], the features, or the output of the layer below.
        """

    @abstractmethod
    def step_parts(self) -> StepParts:
        """Return the modules behind `layer_input`, the layers, `carry` and `logits`."""

    @abstractmethod
    def carry(self, x: Tensor) -> Tensor:
        """Return the features [..., D] of the next row, given the last layer's output."""

    @abstractmethod
    def logits(self, features: Tensor, target: TargetParts) -> Tensor:
        """Return the logits [..., V'], given the result of `carry`."""

    def layer(self, index: int) -> DecoderLayer:
        """Return a decoder layer."""
        layer = self.layers[index]
        assert isinstance(layer, DecoderLayer)
        return layer
