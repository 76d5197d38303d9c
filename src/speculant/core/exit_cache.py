"""The interface of a target cache whose first layers can be run alone, for early-exit drafts.

LayerSkip (Elhoushi et al. 2024, arXiv 2404.16710, section 4.3.3) and Kangaroo (Liu et al. 2024, arXiv 2404.18911,
section 3.1) run the first layers of drafted tokens only once: verification continues from their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from speculant.core.engine import EngineArray, Pass, TargetCache
from speculant.core.tree import Int32


@runtime_checkable
class ExitCache(TargetCache, Protocol):
    """A `TargetCache` that can run its first layers alone."""

    @property
    def exits(self) -> bool:
        """Whether the first layers can be run alone; see `read_exit`."""

    def read_exit(self, tokens: Int32, parents: Int32, layers: int, *, logits: bool = False) -> Pass:
        """Run n rows through the first layers; the next pass through all layers continues from these pending rows.

        Pending rows do not count as rows of the cache: the next call drops those that it does not use. A pass through
        all layers uses those that match its first rows in tokens and parents.

        Args:
            tokens: Int32[n].
            parents: Int32[n], counted from the first pending row; -1 for children of the last committed token.
            layers: number of layers to run.
            logits: whether to compute logits from the states with the final norm and head.

        Returns:
            The Pass; its `hidden` [n, 1, D] is the output of the last of these layers.

        Raises:
            OutOfMemoryError, UsageError: as in `forward`.
            UnsupportedError: the first layers cannot be run alone.
        """

    def spare_exit(self, count: int, layers: int) -> Sequence[tuple[EngineArray, EngineArray]] | None:
        """Return buffers [H, room, d] to write the keys and values of `count` rows after the committed ones into.

        Drops all pending rows. See `adopt_exit`.

        Args:
            count: number of rows.
            layers: number of first layers.

        Returns:
            Key and value buffers of each layer; None if token positions differ from row numbers, or there is no room.
        """

    def adopt_exit(self, tokens: Int32, states: EngineArray) -> None:
        """Mark rows whose keys and values were written to `spare_exit`'s buffers as pending, as `read_exit` does.

        Args:
            tokens: Int32[n], each following the one before it.
            states: [n, D], output of the last of the layers.
        """

    def drop_exit(self) -> None:
        """Drop all pending rows, if any."""
