"""The uncommitted rows of a cache, and the attention masks of passes that add to them.

A pass appends its rows to the cache in flat order, whatever their depth. The mask decides which rows attend to which
(each row sees the committed tokens, its ancestors and itself), and positions come from depths. So a tree that is grown
level by level gives the same logits as one that is run in a single pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numba import njit

from speculant.core.tree import ROOT, Bool, Int32, Int64


@dataclass(frozen=True, slots=True, eq=False)
class DraftRows:
    """A forest of U rows below the last committed token.

    Attributes:
        parents: Int64[U], parent of each row; -1 for children of the last committed token.
        depths: Int64[U], depth of each row; 1 for those children.
        ancestors: Bool[U, U], True where the column is an ancestor of the row, or the row itself.
    """

    parents: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    depths: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    ancestors: Bool = field(default_factory=lambda: np.empty((0, 0), bool))

    def __len__(self) -> int:
        return len(self.parents)

    def grown(self, parents: Int32 | Int64) -> DraftRows:
        """Return these rows with further ones appended.

        Args:
            parents: Int[n], numbered like `self.parents`; a parent precedes its children.

        Raises:
            ValueError: a parent does not precede its child.
        """
        above = np.concatenate([self.parents, parents], dtype=np.int64)
        depths, ancestors, valid = _grow(self.depths, self.ancestors, above)
        if not valid:
            raise ValueError("the row that another follows must come before it, or be -1 for the committed text")
        return DraftRows(above, depths, ancestors)

    def is_chain(self) -> bool:
        """Return whether every row follows the previous one."""
        return bool((self.parents == np.arange(-1, len(self) - 1)).all())

    def mask(
        self, start: int, length: int, *, seen: Bool | None = None, window: int | None = None, hidden: int = 0
    ) -> Bool:
        """Return Bool[1, 1, U - start, L + hidden + U], True where the rows from `start` on may attend.

        Args:
            start: the first row of the pass.
            length: the number L of committed tokens.
            seen: Bool[<= L], False at padding in front of the text; None without padding.
            window: for sliding layers, number of positions a row sees, itself included.
            hidden: number of tokens cached between the L committed ones and the rows, which are not visible.
        """
        mask = np.ones((1, 1, len(self) - start, length + len(self)), bool)
        if seen is not None:
            mask[..., : len(seen)] = seen
        mask[..., length:] = self.ancestors[start:]
        if window is not None:
            positions = np.concatenate([np.arange(length), length - 1 + self.depths])
            mask &= positions > positions[length + start :, None] - window
        if hidden:
            mask = np.concatenate(
                [mask[..., :length], np.zeros((*mask.shape[:-1], hidden), bool), mask[..., length:]], axis=-1
            )
        return mask


@njit(cache=True)
def _grow(depths_before, ancestors_before, parents):  # type: ignore[no-untyped-def]
    """Return depths and ancestors of all rows, given those of the first ones, and whether every parent precedes.

    Loops copy what slices could: assignments of slices take numba seconds to compile, for the message of an error.
    """
    total, before = len(parents), len(depths_before)
    depths, ancestors = np.ones(total, np.int64), np.zeros((total, total), np.bool_)
    for row in range(before):
        depths[row] = depths_before[row]
        for column in range(row + 1):
            ancestors[row, column] = ancestors_before[row, column]
    for row in range(before, total):
        parent = parents[row]
        if not ROOT <= parent < row:
            return depths, ancestors, False
        if parent != ROOT:
            depths[row] += depths[parent]
            for column in range(parent + 1):
                ancestors[row, column] = ancestors[parent, column]
        ancestors[row, row] = True
    return depths, ancestors, True


@dataclass(frozen=True, slots=True, eq=False)
class NewRows:
    """Rows that a pass will append.

    Attributes:
        ids: Int64[n].
        positions: Int64[n].
        mask: the value passed to the model as `attention_mask`.
        rows: the cache's uncommitted rows after the pass.
    """

    ids: Int64
    positions: Int64
    mask: object
    rows: DraftRows
