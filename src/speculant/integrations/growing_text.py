"""A request's text in a growable array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from speculant.core.tree import Int32


class GrowingText:
    """The text of a request that an engine identifies by name and shows in parts.

    Attributes:
        length: length of the text.
    """

    __slots__ = ("_tokens", "length")

    def __init__(self, tokens: Sequence[int] | Int32) -> None:
        self._tokens = np.array(tokens, np.int32)
        self.length = len(self._tokens)

    @property
    def tokens(self) -> Int32:
        """Int32[T], the text; a view."""
        return self._tokens[: self.length]

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        end = self.length + len(tokens)
        if end > len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty(end, np.int32)])
        self._tokens[self.length : end] = tokens
        self.length = end
