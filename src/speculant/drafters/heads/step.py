"""A head's step as data: what faster code needs to run one in a single call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from speculant.core.tree import Float32, Int32
from speculant.drafters.heads.layers import RMSNorm, Rotary
from speculant.drafters.models.shapes import GrowthPlan


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepParts:
    """The modules that a row passes, in this order.

    Attributes:
        fuse: of the embedding beside the feature, [D, 2D], in front of the layers; None for the feature alone.
        fuse_norms: of the embedding and of the feature, in front of that projection; None for none.
        feature_first: whether that projection reads the feature before the embedding.
        layers: layers that have a `hidden_norm` read the normed embedding beside their normed input.
        normed_residual: whether the output of the first layer is added to its normed input.
        norm: behind the layers; None for none.
        carries_norm: whether the next row reads what was normed.
        output: of the logits [V', D]; None for the target's.
        rotary: of all layers.
        embeddings: of the tokens; None for the target's.
        ids: Int64[V'], the target's token of each logit; None if they are the target's own.
        exit: how many of the layers, the first ones, are those of the target, which read the embedding alone.
    """

    fuse: nn.Linear | None
    fuse_norms: tuple[RMSNorm, RMSNorm] | None = None
    feature_first: bool = False
    layers: tuple[nn.Module, ...]
    normed_residual: bool
    norm: RMSNorm | None
    carries_norm: bool
    output: nn.Linear | None
    rotary: Rotary
    embeddings: nn.Embedding | None
    ids: Tensor | None
    exit: int = 0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TextRows:
    """New rows of one text, which are the last ones of its keys and values.

    Attributes:
        features: [..., D], contiguous.
        places: Int64[n], which of the features each row reads; None for one after the other.
        positions: Int64[n].
        last: the highest position.
        seen: Bool[n, length], which rows of the text each may attend to; None for all.
        held: keys and values [H_kv, room, d] of every layer, contiguous.
        length: rows of the text, the new ones included.
        passed: [m, D], written: what the last m rows pass on; m is at most n.
        exits: [n, D], written: what the target's first layers return; None where that is not wanted.
    """

    features: Tensor
    places: Tensor | None
    positions: Tensor
    last: int
    seen: Tensor | None
    held: tuple[tuple[Tensor, Tensor], ...]
    length: int
    passed: Tensor
    exits: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DraftRoot:
    """What a whole draft grows below.

    Attributes:
        passed: [..., D], contiguous; the first row is what the root's row passes on.
        logits: [1, V'], after the root.
        held: keys and values [H_kv, room, d] of every layer, contiguous, with room for `levels * expanded` rows more.
        length: committed rows of these.
        position: of the first drafted token.
        exits: [levels, D], written as in `TextRows`, by the draft's rows.
    """

    passed: Tensor
    logits: Tensor
    held: tuple[tuple[Tensor, Tensor], ...]
    length: int
    position: int
    exits: Tensor | None = None


class StepCode(Protocol):
    """Faster code for the steps of a head, for a few rows and without gradients.

    Attributes:
        maximum: rows of one text.
        max_together: rows of a call.
    """

    maximum: int
    max_together: int

    def __call__(self, embeddings: Tensor, texts: Sequence[TextRows]) -> Tensor | None:
        """Run rows of several texts, with their keys and values written.

        Args:
            embeddings: [n, D], of the tokens of all rows, text by text.
            texts: one or more.

        Returns:
            The logits [m, V'] after the last rows of all texts; None, with nothing written, if the code does not do
            these rows.
        """

    def draft(
        self, roots: Sequence[DraftRoot], plans: Sequence[GrowthPlan], *, vocabulary: int, temperatures: Sequence[float]
    ) -> list[tuple[Int32, Int32, Float32, list[float]] | None] | None:
        """Grow whole drafts of chosen tokens, a level of all texts at a time.

        Args:
            roots: what the drafts grow below.
            plans: of the drafts.
            vocabulary: V of the target.
            temperatures: of their probabilities.

        Returns:
            Of each what a `GrownDraft` holds, None where logits are no numbers; None for all where the code does not
            grow such drafts.
        """


@dataclass(frozen=True, slots=True, eq=False)
class GrownDraft:
    """All candidates of a draft.

    Attributes:
        tokens, parents, weights: of the candidates, parents first; weights are joint probabilities, none above the
            parent's.
        extended: of levels 2, 3, ...: the joint probability of all nodes that it extended.
    """

    tokens: Int32
    parents: Int32
    weights: Float32
    extended: list[float]
