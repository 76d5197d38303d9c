"""The window of Lookahead Decoding: the Jacobi iterations of the last N - 1 passes, side by side.

Fu, Bailis, Stoica, Zhang: "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding", ICML 2024, arXiv
2402.02057, section 3.1 and figure 2. The window has W columns and, once it is full, N - 1 levels, oldest first. The
oldest level of column 0 is the root itself. Every pass adds to each column the argmax after its newest token, and drops
the oldest level:

    level 0      root  a1  a2  a3  a4       a row sees level 0 up to its own column,
    level 1       b0   b1  b2  b3  b4       then its own column down to itself
    level 2       c0   c1  c2  c3  c4
    argmaxes      d0   d1  d2  d3  d4       the n-grams (root, b0, c0, d0), (a1, b1, c1, d1), ...

The parent of a row in level 0 is the row to its left, and the parent of every other row is the row above it, so the
published mask and positions are those of a tree. After a pass, level 1 without its column 0, which the new root
replaces, becomes the new level 0. As in the authors' code, the window advances by one position per pass, however many
tokens were committed.

It begins with level 0 only, of W + N - 2 columns, and gains one level per pass, each time dropping column 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np

from speculant.core.tree import ROOT, Queries


def max_queries(width: int, ngram: int) -> int:
    """Return the maximum number of rows that a window has, including while it is being filled."""
    return max(_rows(width + ngram - 2 - level, level + 1) for level in range(ngram - 1))


class LookaheadWindow:
    """The tokens of a window; level 0 is stored without the root."""

    def __init__(self, tokens: Sequence[int], *, width: int, ngram: int) -> None:
        """Start with level 0.

        Args:
            tokens: W + N - 3 initial guesses.
            width: W, number of columns.
            ngram: N, tokens per n-gram.
        """
        self._levels = [list(tokens)]
        self._ngram = ngram
        assert len(tokens) == width + ngram - 3

    @property
    def columns(self) -> int:
        """Number of columns, including column 0."""
        return len(self._levels[0]) + 1

    def columns_within(self, branches: int) -> int:
        """Return how many columns fit into a pass with that many branches; 0 if too few to fill the window."""
        levels = len(self._levels)
        columns = self.columns if levels == 1 else min(self.columns, branches)
        return columns if columns >= self._ngram - levels else 0  # each level added while filling drops a column

    def first_columns(self, columns: int) -> LookaheadWindow:
        """Return a window of only the first columns."""
        found = copy(self)
        found._levels = [self._levels[0][: columns - 1], *(level[:columns] for level in self._levels[1:])]
        return found

    def asked_by(self, queries: Queries) -> LookaheadWindow:
        """Return the window of the first columns to whose rows these queries belong."""
        return self.first_columns((len(queries) + 1) // len(self._levels))

    @property
    def depth(self) -> int:
        """Depth of its deepest row below the root."""
        return len(self._levels[0]) + len(self._levels) - 1

    def queries(self) -> Queries:
        """Return the window's rows as queries, level by level."""
        first = len(self._levels[0])
        parents = list(range(ROOT, first - 1))  # of columns 1, 2, ... of level 0
        above = list(range(ROOT, first))  # rows of level 0, all columns
        for _ in self._levels[1:]:
            parents += above
            above = list(range(len(parents) - first - 1, len(parents)))
        tokens = [token for level in self._levels for token in level]
        return Queries(np.array(tokens, np.int32), np.array(parents, np.int32))

    def advance(self, root: int, after_root: int, argmaxes: Sequence[int]) -> list[tuple[int, ...]]:
        """Add the argmaxes of a pass; return the n-grams of all columns, or none while the window is not full.

        Args:
            root: root of the pass.
            after_root: argmax after the root.
            argmaxes: argmax after each of the rows that `queries` returned.
        """
        levels, columns = self._levels, self.columns
        newest = [after_root, *argmaxes] if len(levels) == 1 else list(argmaxes[-columns:])
        if len(levels) < self._ngram - 1:
            self._levels = [level[1:] for level in (*levels, newest)]
            return []
        full = [[root, *levels[0]], *levels[1:], newest]
        self._levels = [full[1][1:], *full[2:]]
        return list(zip(*full, strict=True))


def _rows(columns: int, levels: int) -> int:
    return columns * levels - 1
