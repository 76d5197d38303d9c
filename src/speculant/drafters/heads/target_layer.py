"""The interface of a decoder layer of the target's own class with a head's own weights.

MTP heads are such layers: they have the same attention, gates, experts and rotary embedding as the target. The engine
builds them, since it knows the class; heads only run them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

FULL = "full_attention"
SLIDING = "sliding_attention"


class LayerRows(Protocol):
    """The keys and values in one layer, of one text or of a batch of texts of equal length."""

    def keep(self, count: int) -> None:
        """Drop all rows but the first `count`."""


@runtime_checkable
class TargetLayer(Protocol):
    """A decoder layer: a module that is called for the rows of texts.

    Attributes:
        kind: kind of its attention, as named in `layer_types` of configs.
    """

    kind: str

    def open(self) -> LayerRows:
        """Return the rows of a new text, initially none."""

    def __call__(self, x: Tensor, positions: Tensor, seen: Tensor | None, rows: LayerRows) -> Tensor:
        """Append rows; return the layer's output [B, n, D].

        Args:
            x: [B, n, D], residual stream.
            positions: Int64[B, n], positions of the rows in their texts.
            seen: Bool[B, n, rows], rows that each may attend to, including the new ones; None for all.
            rows: result of `open`.
        """

    def run_together(
        self, x: Tensor, positions: Tensor, seen: Sequence[Tensor | None], rows: Sequence[LayerRows]
    ) -> Tensor:
        """Append rows of several texts, with separate attention; return the layer's output [n, D].

        Args:
            x: [n, D], residual stream, text by text.
            positions: Int64[n], positions of the rows in their texts.
            seen: for each text, Bool[n_i, rows] as above; None for one row that attends to all.
            rows: rows of each text.
        """
