"""A head's step as data: what fast code needs to run one in a single call."""

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
    """The modules that a row passes through, in this order.

    Attributes:
        fuse: projection [D, 2D] of embedding and feature before the layers; None to use the feature alone.
        fuse_norms: norms of the embedding and of the feature before that projection; None for none.
        feature_first: whether that projection reads the feature before the embedding.
        layers: the layers; those with a `hidden_norm` read the normed embedding in addition to their normed input.
        normed_residual: whether the output of the first layer is added to its normed input.
        norm: norm after the layers; None for none.
        carries_norm: whether the next row reads the normed output.
        output: output projection [V', D]; None for the target's.
        rotary: rotary embedding of all layers.
        embeddings: token embeddings; None for the target's.
        ids: Int64[V'], the target's token for each logit; None if the vocabularies are equal.
        exit: number of first layers that belong to the target, which read only the embedding.
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
    """New rows of one text, which are the last rows of its keys and values.

    Attributes:
        features: [..., D], contiguous.
        places: Int64[n], index of the feature that each row reads; None if in order.
        positions: Int64[n].
        last: highest position.
        seen: Bool[n, length], rows of the text each may attend to; None for all.
        held: keys and values [H_kv, room, d] of every layer, contiguous.
        length: number of rows of the text, including the new ones.
        passed: [m, D], output buffer for the features that the last m rows pass on; m is at most n.
        exits: [n, D], output buffer for the output of the target's first layers; None if not needed.
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
    """The root below which a whole draft grows.

    Attributes:
        passed: [..., D], contiguous; the first row contains the features that the root's row passes on.
        logits: [1, V'], after the root.
        held: keys and values [H_kv, room, d] of every layer, contiguous, with room for `levels * expanded` more rows.
        length: number of committed rows in these.
        position: position of the first drafted token.
        exits: [levels, D], output buffer as in `TextRows`, for the draft's rows.
    """

    passed: Tensor
    logits: Tensor
    held: tuple[tuple[Tensor, Tensor], ...]
    length: int
    position: int
    exits: Tensor | None = None


class StepCode(Protocol):
    """Fast code for the steps of a head, for a few rows and without gradients.

    Attributes:
        maximum: maximum rows of one text.
        max_together: maximum rows per call.
    """

    maximum: int
    max_together: int

    def __call__(self, embeddings: Tensor, texts: Sequence[TextRows]) -> Tensor | None:
        """Run rows of several texts, and write their keys and values.

        Args:
            embeddings: [n, D], embeddings of the tokens of all rows, text by text.
            texts: at least one text.

        Returns:
            The logits [m, V'] after the last rows of all texts; None, with nothing written, if the code does not
            support these rows.
        """

    def draft(
        self, roots: Sequence[DraftRoot], plans: Sequence[GrowthPlan], *, vocabulary: int, temperatures: Sequence[float]
    ) -> list[tuple[Int32, Int32, Float32, list[float]] | None] | None:
        """Grow whole deterministic drafts, one level of all texts at a time.

        Args:
            roots: roots of the drafts.
            plans: growth plans of the drafts.
            vocabulary: V of the target.
            temperatures: temperatures of their probabilities.

        Returns:
            For each draft, the fields of a `GrownDraft`, or None if logits are NaN; None instead of the list if the
            code does not support such drafts.
        """


@dataclass(frozen=True, slots=True, eq=False)
class GrownDraft:
    """All candidates of a draft.

    Attributes:
        tokens, parents, weights: of the candidates, parents first; weights are joint probabilities, none above the
            parent's.
        extended: for levels 2, 3, ..., the joint probability of all nodes that the level extended.
    """

    tokens: Int32
    parents: Int32
    weights: Float32
    extended: list[float]
