"""The contract of a sparse cache: passes of a model that read a part of a text's keys and values.

Beyond some thousand tokens a pass over one token reads more of the cache than of the weights. A sparse cache holds
copies of a few rows of each layer, so that a pass below them costs what it would cost on a short text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from speculant.core.errors import UsageError
from speculant.core.tree import Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBudget:
    """How many rows of a committed text a sparse cache holds of each layer, and which.

    Attributes:
        sinks: the first rows, which attention falls back on (Xiao et al. 2023, arXiv 2309.17453).
        recent: the last rows.
        retrieved: rows between those, of whole pages, which each head of keys chooses by attention.
        page: consecutive rows that are chosen together.
    """

    sinks: int
    recent: int
    retrieved: int
    page: int

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            UsageError: one is negative, or there are no recent rows or no page.
        """
        if min(self.sinks, self.retrieved) < 0 or min(self.recent, self.page) < 1:
            raise UsageError(f"a sparse cache needs recent rows, pages of 1 row or more and no negative number: {self}")


class SparseCache(Protocol):
    """Chosen rows of one sequence's committed text, and the passes below them.

    The rows belong to a `TargetCache`, which must have no rows that are not committed when these methods are called.
    Passes append rows of a draft, which are never kept: what is committed is copied from that cache. They return the
    logits [n, V] after their rows, an array of the engine's on its device.
    """

    def retrieve(self, root: int) -> Any:
        """Drop the draft's rows and begin a draft with a pass of the whole model, which chooses the rows anew.

        The pass reads the whole cache, so its logits are the target's own. Its row is the draft's first.

        Args:
            root: the last committed token.

        Raises:
            OutOfMemoryError: the device is full; the rows are as they were.
            UsageError: the text's cache was used elsewhere meanwhile.
            UnsupportedError: the model attends in a way that shows no queries.
        """

    def begin(self, root: int) -> Any:
        """Drop the draft's rows, take over what was committed since, and begin a draft on the chosen rows.

        Raises:
            OutOfMemoryError: the device is full; no row of the draft was appended.
            UsageError: nothing was retrieved yet.
        """

    def forward(self, tokens: Int32, parents: Int32) -> Any:
        """Run a pass over n further rows of the draft and append them.

        Args:
            tokens: Int32[n].
            parents: Int32[n], the row that each follows, counted from the root's, which is row 0.

        Raises:
            OutOfMemoryError: the device is full; nothing was appended.
        """

    def release(self) -> None:
        """Free the rows; nothing can follow."""
