"""The contract of a target's cache whose first layers can be run alone, for drafts of an early exit.

LayerSkip (Elhoushi et al. 2024, arXiv 2404.16710, section 4.3.3) and Kangaroo (Liu et al. 2024, arXiv 2404.18911,
section 3.1) run the first layers of drafted tokens once: verification goes on from their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from speculant.core.engine import Array, Pass, TargetCache
from speculant.core.tree import Int32


@runtime_checkable
class ExitCache(TargetCache, Protocol):
    """See `TargetCache`."""

    @property
    def exits(self) -> bool:
        """Whether the first layers can be run alone, see `read_exit`."""

    def read_exit(self, tokens: Int32, parents: Int32, layers: int, *, logits: bool = False) -> Pass:
        """Run n rows through the first layers; they wait for the next pass of all layers, which goes on from them.

        These rows count as none of the cache's: whatever comes next drops those that it does not use. A pass of all
        layers uses those that are its first rows, by tokens and parents.

        Args:
            tokens: Int32[n].
            parents: Int32[n], counted from the first row that waits; -1 for those below the last committed token.
            layers: how many layers.
            logits: whether the Pass has the logits that final norm and head make of the states.

        Returns:
            Its `hidden` [n, 1, D] is what the last of these layers returned.

        Raises:
            OutOfMemoryError, UsageError: as in `forward`.
            UnsupportedError: the first layers cannot be run alone.
        """

    def spare_exit(self, count: int, layers: int) -> Sequence[tuple[Array, Array]] | None:
        """Return where code may write the keys and values [H, room, d] of `count` rows behind the committed ones.

        Whatever waits is dropped. See `adopt_exit`.

        Args:
            count: of rows.
            layers: how many of the first layers.

        Returns:
            Of each layer; None where the positions of tokens are not those of their rows, or there is no room.
        """

    def adopt_exit(self, tokens: Int32, states: Array) -> None:
        """Let rows wait as if `read_exit` had run them, whose keys and values were written to what `spare_exit` gave.

        Args:
            tokens: Int32[n], each following the one before it.
            states: [n, D], what the last of the layers returned.
        """

    def drop_exit(self) -> None:
        """Drop the rows that wait; nothing happens where there are none."""
