"""The window of Lookahead Decoding: Jacobi iterations of the last N - 1 passes, side by side.

Fu, Bailis, Stoica, Zhang: "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding", ICML 2024, arXiv
2402.02057, section 3.1 and figure 2. The window has W columns and, once it is full, N - 1 levels, the oldest first. The
oldest level of column 0 is the root itself. Every pass adds to each column the argmax after its newest token, and drops
the oldest level:

    level 0      root  a1  a2  a3  a4       a row sees level 0 up to its own column,
    level 1       b0   b1  b2  b3  b4       then its own column down to itself
    level 2       c0   c1  c2  c3  c4
    argmaxes      d0   d1  d2  d3  d4       the n-grams (root, b0, c0, d0), (a1, b1, c1, d1), ...

So each row of level 0 has the row to its left as its parent, each row below has the row above it, and the published
mask and positions are those of a tree. After a pass level 1 without its column 0, which the new root replaces, is the
new level 0. As in the authors' code the window goes on by one position a pass, however many tokens were committed.

It begins with level 0 alone, of W + N - 2 columns, and is filled by a level a pass, each time dropping column 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np

from speculant.core.tree import ROOT, Queries


def max_queries(width: int, ngram: int) -> int:
    """Return the most rows that a window has, while it is filled or later."""
    return max(_rows(width + ngram - 2 - level, level + 1) for level in range(ngram - 1))


class LookaheadWindow:
    """The tokens of a window; level 0 is held without the root."""

    def __init__(self, tokens: Sequence[int], *, width: int, ngram: int) -> None:
        """Begin with level 0.

        Args:
            tokens: W + N - 3 initial guesses.
            width: W, columns.
            ngram: N, tokens of an n-gram.
        """
        self._levels = [list(tokens)]
        self._ngram = ngram
        assert len(tokens) == width + ngram - 3

    @property
    def columns(self) -> int:
        """How many there are, column 0 included."""
        return len(self._levels[0]) + 1

    def columns_within(self, branches: int) -> int:
        """Return how many columns a pass can hold that branches so often, beside a chain; 0 if too few to fill it."""
        levels = len(self._levels)
        columns = self.columns if levels == 1 else min(self.columns, branches)
        return columns if columns >= self._ngram - levels else 0  # filling it drops a column a level

    def first_columns(self, columns: int) -> LookaheadWindow:
        """Return the window of the first columns."""
        found = copy(self)
        found._levels = [self._levels[0][: columns - 1], *(level[:columns] for level in self._levels[1:])]
        return found

    def asked_by(self, queries: Queries) -> LookaheadWindow:
        """Return the window of the first columns whose rows these queries are."""
        return self.first_columns((len(queries) + 1) // len(self._levels))

    @property
    def depth(self) -> int:
        """How deep its deepest row is below the root."""
        return len(self._levels[0]) + len(self._levels) - 1

    def queries(self) -> Queries:
        """Return its rows, level by level."""
        first = len(self._levels[0])
        parents = list(range(ROOT, first - 1))  # of the columns 1, 2, ... of level 0
        above = list(range(ROOT, first))  # the rows of level 0, of all columns
        for _ in self._levels[1:]:
            parents += above
            above = list(range(len(parents) - first - 1, len(parents)))
        tokens = [token for level in self._levels for token in level]
        return Queries(np.array(tokens, np.int32), np.array(parents, np.int32))

    def advance(self, root: int, after_root: int, argmaxes: Sequence[int]) -> list[tuple[int, ...]]:
        """Add the argmaxes of a pass; return the n-grams of all columns, none while the window is not full.

        Args:
            root: the root of the pass.
            after_root: the argmax after it.
            argmaxes: those after each of the rows that `queries` returned.
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
