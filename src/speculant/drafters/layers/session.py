"""Requests whose drafts come from some of the target's own layers, on the target's own cache.

The cache holds the keys of all committed tokens but the root, in all layers, so a draft begins with a pass over the
root. Draft rows have no keys in layers whose attention was skipped. Rows of the first layers are kept for the target's
pass, which continues from them; other rows are dropped before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from speculant.core.drafter import Budget, SessionRequest, Verified
from speculant.core.exit_cache import ExitCache
from speculant.core.sublayers import Sublayers
from speculant.core.tree import ROOT, DraftTree
from speculant.drafters.models.level_session import LevelSession, LevelText
from speculant.drafters.models.shapes import Shape
from speculant.drafters.models.warping import Warping


class TargetLayerText(LevelText):
    """The committed text on the target's cache, and the rows of the draft below it.

    Attributes:
        target: the cache, which belongs to the sequence.
        layers: the sublayers that draft.
    """

    def __init__(self, start: SessionRequest, layers: Sublayers) -> None:
        assert start.target is not None  # set by every path that decodes with a model
        self.target, self.layers, self._warping = start.target, layers, Warping(start.sampling)
        self._root, self._count = ROOT, 0
        self._first = layers.first or 0
        self._exits = start.target if self._first and isinstance(start.target, ExitCache) else None

    @property
    def depth(self) -> int:
        return self.target.depth

    @property
    def trees(self) -> bool:
        return self.target.trees

    def begin(self) -> Tensor:
        """Append the root's row; return q [1, V] after it."""
        self._count = 0
        if self._exits is not None:
            self._exits.drop_exit()
        return self._forward([self._root], [ROOT])

    def read(self, tokens: Sequence[int], above: Sequence[int]) -> tuple[list[int], Tensor]:
        first = self._count
        q = self._forward(tokens, [max(0, row) for row in above])  # the root's own row is row 0
        return list(range(first, self._count)), q

    def observe(self, verified: Verified) -> None:
        self._root = int(verified.tokens[-1])

    def release(self) -> None:
        """Do nothing: the cache belongs to the sequence."""

    def leave(self) -> None:
        """Prepare the cache for the target's pass."""
        if self._exits is None or not self._exits.exits:
            self.target.rollback()

    def _forward(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        given = np.array(tokens, np.int32), np.array(parents, np.int32)
        if self._exits is not None and self._exits.exits:
            result = self._exits.read_exit(*given, self._first, logits=True)
        else:
            result = self.target.forward(*given, layers=self.layers)
        self._count += len(tokens)
        return self._warping(result.logits)


class LayerSession(LevelSession):
    """One request: its text, and the shape of its drafts."""

    def __init__(self, start: SessionRequest, layers: Sublayers, shape: Shape) -> None:
        self._lent = TargetLayerText(start, layers)
        super().__init__(self._lent, start, shape)

    def propose(self, budget: Budget) -> DraftTree:
        """Return a draft. Repeated calls before `observe` draw the same tokens."""
        try:
            return super().propose(budget)
        finally:
            self._lent.leave()
