"""The contract of a draft filter: which drafted nodes the target cannot produce, and which tokens it has to."""

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

    def forced(self, tokens: Sequence[int], maximum: int) -> list[int]:
        """Return up to `maximum` tokens that must follow the text, since every other one has a probability of 0.

        Tokens that end the text are not among them: no pass is needed for what follows them.

        Args:
            tokens: committed so far, prompt excluded.
            maximum: of them.
        """

    def complete(self, tokens: Sequence[int]) -> bool:
        """Return whether the text may end here.

        Args:
            tokens: committed so far, prompt excluded.
        """
        ...
