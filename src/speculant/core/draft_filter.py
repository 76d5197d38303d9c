"""The interface of a draft filter: which drafted nodes the target cannot produce, and which tokens it must."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from speculant.core.tree import Bool, DraftTree


class DraftFilter(Protocol):
    """Knows which tokens have probability 0 in one request. Applied only to drafts whose tokens were chosen.

    A sampled node must not be dropped because of its own value, which would bias the output.
    """

    def allowed(self, tree: DraftTree, tokens: Sequence[int]) -> Bool:
        """Return Bool[N], False at nodes that cannot follow the text and their ancestors in the draft.

        Args:
            tree: draft below the last committed token.
            tokens: tokens committed so far, without the prompt.
        """

    def find_forced(self, tokens: Sequence[int], maximum: int) -> list[int]:
        """Return up to `maximum` tokens that must come next, because all others have probability 0.

        Tokens that end the text are left out: nothing after them needs a pass.

        Args:
            tokens: tokens committed so far, without the prompt.
            maximum: maximum number of tokens to return.
        """

    def complete(self, tokens: Sequence[int]) -> bool:
        """Return whether the text may end here.

        Args:
            tokens: tokens committed so far, without the prompt.
        """
        ...
