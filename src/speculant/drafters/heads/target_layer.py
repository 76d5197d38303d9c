"""The contract of a decoder layer of the target's own class, with weights of a head's own.

MTP heads are such layers: whatever attention, gates, experts and rotary embedding the target has, they have too. The
engine builds them, since it knows the class; heads only run them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

FULL = "full_attention"
SLIDING = "sliding_attention"


class LayerRows(Protocol):
    """The keys and values of one text, or of a batch of texts of one length, in one layer."""

    def keep(self, count: int) -> None:
        """Drop all rows but the first `count`."""


@runtime_checkable
class TargetLayer(Protocol):
    """A decoder layer, a module that is called for the rows of texts.

    Attributes:
        kind: of its attention, as `layer_types` of configs names it.
    """

    kind: str

    def open(self) -> LayerRows:
        """Return the rows of a new text: none."""

    def __call__(self, x: Tensor, positions: Tensor, seen: Tensor | None, rows: LayerRows) -> Tensor:
        """Append rows; return the layer's output [B, n, D].

        Args:
            x: [B, n, D], the residual stream.
            positions: Int64[B, n], of the rows in their texts.
            seen: Bool[B, n, rows], which rows each may attend to, the new ones included; None for all.
            rows: what `open` returned.
        """

    def run_together(
        self, x: Tensor, positions: Tensor, seen: Sequence[Tensor | None], rows: Sequence[LayerRows]
    ) -> Tensor:
        """Append rows of several texts, which attend apart; return the layer's output [n, D].

        Args:
            x: [n, D], the residual stream, text by text.
            positions: Int64[n], of the rows in their texts.
            seen: of each text, Bool[n_i, rows] as above; None for one row that attends to all.
            rows: of each text.
        """
