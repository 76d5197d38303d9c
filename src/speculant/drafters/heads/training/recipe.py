"""The interface of a recipe: its input for a batch of texts, and its output for the loss.

A recipe runs its head as drafting would, depth by depth, after some positions of the texts, the anchors. The trainer
compares the output with the target's own distributions at the same tokens, by the chosen divergence, and measures
acceptance from the same tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from speculant.drafters.heads.head import TargetParts


@dataclass(frozen=True, slots=True, eq=False)
class SourceStates:
    """What an encoder has read of B sources of at most n tokens.

    Attributes:
        states: [B, n, S], its states; without gradients.
        seen: Bool[B, n], False at padding.
    """

    states: Tensor
    seen: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class TrainBatch:
    """B texts of at most T tokens, and the target's outputs for them.

    Attributes:
        ids: Int64[B, T], padded on the right.
        lengths: Int64[B].
        hidden: [B, T, L', D], outputs of the layers that the head taps; without gradients.
        final: [B, T, D], output of the last layer after the final norm; with gradients if the model is trained, too.
        anchors: Int64[A, 2], text and position of the row i after whose state f_i drafting is trained: its root is
            token i + 1, and the first drafted token i + 2. At least `depth` + 2 tokens of the text follow.
        source: what the target's encoder has read for each text; None for decoder-only targets.
    """

    ids: Tensor
    lengths: Tensor
    hidden: Tensor
    final: Tensor
    anchors: Tensor
    source: SourceStates | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DepthOutput:
    """The head's output at one depth after A anchors, and what it should be.

    Attributes:
        logits: [A, V'], logits of the head.
        target: [A, V'], target's logits for the same token, over the head's vocabulary; without gradients.
        tokens: Int64[A], the text's token at this position, in the head's vocabulary; -1 if that lacks it.
        extra: a loss of the head's own, such as the distance of hidden states; None if there is none.
    """

    logits: Tensor
    target: Tensor
    tokens: Tensor
    extra: Tensor | None = None


class Recipe(Protocol):
    """How a head is trained.

    Attributes:
        head: the module with its weights; it implements `drafters.heads.head.Head`.
        depth: number of depths that are trained.
    """

    head: nn.Module
    depth: int

    def begin(self, done: float) -> None:
        """Start a step after a share of the training; most recipes are the same throughout."""

    def run(self, batch: TrainBatch, target: TargetParts) -> Iterator[DepthOutput]:
        """Yield the output of each depth, 1 to `depth`, after the batch's anchors.

        Texts are as the target wrote them: depth d is trained as if the tokens before it had been drafted correctly.
        """
