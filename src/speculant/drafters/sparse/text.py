"""A committed text on a sparse copy of the target's cache, and the rows of the draft that grows below it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from speculant.core.drafter import SessionRequest, Verified
from speculant.core.sparse_cache import RowBudget, SparseCache
from speculant.core.tree import ROOT
from speculant.drafters.models.level_session import LevelText
from speculant.drafters.models.warping import Warping


class SparseText(LevelText):
    """Drafts on selected rows of the target's cache, which are selected again at regular intervals."""

    def __init__(self, start: SessionRequest, budget: RowBudget, *, refresh: int, min_context: int) -> None:
        """Prepare; rows are selected once the prompt is read, or later, when the text is long enough.

        Args:
            start: the request, including its target.
            budget: numbers of rows to select.
            refresh: committed tokens after which rows are selected again.
            min_context: minimum number of committed tokens for drafting.
        """
        assert start.target is not None  # provided by every path that decodes with a model
        self._target, self._budget, self._warping = start.target, budget, Warping(start.sampling)
        self._refresh, self._min_context = refresh, min_context
        self._sparse: SparseCache | None = None
        self._chosen_at = 0  # number of committed tokens when the rows were selected
        self._choosing = False  # whether this round's draft starts by selecting rows
        self._root, self._count = ROOT, 0

    @property
    def depth(self) -> int:
        return self._target.depth if self._target.length >= self._min_context else 0

    @property
    def trees(self) -> bool:
        return self._target.trees

    def begin(self) -> Tensor:
        """Start a draft on the selected rows, or select them; a repeated call within a round does the same again."""
        self._count = 1
        due = self._choosing or self._target.length - self._chosen_at >= self._refresh
        if self._sparse is None or due:
            self._choosing = True
            return self._warping(self._choose())
        return self._warping(self._sparse.begin(self._root))

    def read(self, tokens: Sequence[int], above: Sequence[int]) -> tuple[list[int], Tensor]:
        assert self._sparse is not None  # `begin` comes before `read`
        parents = [max(0, row) for row in above]  # the root's own row is row 0
        logits = self._sparse.forward(np.array(tokens, np.int32), np.array(parents, np.int32))
        rows = list(range(self._count, self._count + len(tokens)))
        self._count += len(tokens)
        return rows, self._warping(logits)

    def observe(self, verified: Verified) -> None:
        """Set the new root. After a long prompt, rows are selected at once, so that all drafts cost the same.

        Draft sizes depend on the cost of the first drafts, which must not include the selection after the prompt.
        """
        first, self._root, self._choosing = self._root == ROOT, int(verified.tokens[-1]), False
        if first and self.depth:
            self._choose()

    def _choose(self) -> Tensor:
        """Select rows by a pass over the root; return its logits [1, V]."""
        if self._sparse is None:
            self._sparse = self._target.open_sparse(self._budget)
        logits: Tensor = self._sparse.retrieve(self._root)
        self._chosen_at = self._target.length
        return logits

    def release(self) -> None:
        """Free the selected rows; the target's cache still belongs to the sequence."""
        if self._sparse is not None:
            self._sparse.release()
