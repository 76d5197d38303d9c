"""The interface of a sparse cache: passes that read only part of a text's keys and values.

Beyond a few thousand tokens, a pass over one token reads more bytes of the KV cache than of the weights. A sparse cache
holds copies of a few rows of each layer, so that a pass on it costs as little as on a short text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from speculant.core.errors import UsageError
from speculant.core.tree import Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBudget:
    """How many rows of a committed text a sparse cache holds in each layer, and which ones.

    Attributes:
        sinks: number of first rows, the attention sinks (Xiao et al. 2023, arXiv 2309.17453).
        recent: number of last rows.
        retrieved: number of rows in between, in whole pages, which each key head selects by attention.
        page: number of consecutive rows that are selected together.
    """

    sinks: int
    recent: int
    retrieved: int
    page: int

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            UsageError: a number is negative, or `recent` or `page` is 0.
        """
        if min(self.sinks, self.retrieved) < 0 or min(self.recent, self.page) < 1:
            raise UsageError(f"a sparse cache needs recent rows, pages of 1 row or more and no negative number: {self}")


class SparseCache(Protocol):
    """Selected rows of one sequence's committed text, and the passes that draft on them.

    The rows belong to a `TargetCache`, which must have no uncommitted rows when these methods are called. Passes append
    rows of a draft, which are never kept: committed rows are copied from that cache. They return the logits [n, V]
    after their rows, in the engine's array type on its device.
    """

    def retrieve(self, root: int) -> Any:
        """Drop the draft's rows and begin a new draft with a pass over the whole cache, which selects the rows anew.

        Because it reads the whole cache, the pass returns the target's own logits. Its row is the draft's first.

        Args:
            root: the last committed token.

        Raises:
            OutOfMemoryError: the device is full; the rows are unchanged.
            UsageError: the text's cache has been used elsewhere in the meantime.
            UnsupportedError: the model's attention does not expose its queries.
        """

    def begin(self, root: int) -> Any:
        """Drop the draft's rows, copy the rows committed since, and begin a new draft on the selected rows.

        Raises:
            OutOfMemoryError: the device is full; no row of the draft was appended.
            UsageError: `retrieve` has not been called yet.
        """

    def forward(self, tokens: Int32, parents: Int32) -> Any:
        """Run a pass over n more rows of the draft and append them.

        Args:
            tokens: Int32[n].
            parents: Int32[n], the parent row of each; row 0 is the root's.

        Raises:
            OutOfMemoryError: the device is full; nothing was appended.
        """

    def release(self) -> None:
        """Free the rows; the cache cannot be used afterwards."""
