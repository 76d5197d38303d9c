"""The contract of a draft filter: which drafted nodes the target cannot produce, and so need not be verified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from speculant.core.tree import Bool, DraftTree


class DraftFilter(Protocol):
    """Knows of one request which tokens have a probability of 0. Asked for drafts of chosen tokens only.

    A sampled node must not be dropped because of its own value, which would bias the output.
    """

    def allowed(self, tree: DraftTree, tokens: Sequence[int]) -> Bool:
        """Return Bool[N], False at nodes that cannot follow the text and their ancestors.

        Args:
            tree: below the last committed token.
            tokens: committed so far, prompt excluded.
        """
