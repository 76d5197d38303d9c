"""What the first layers of a model computed for a draft's rows, for the pass that verifies it to go on from.

Self-speculative methods draft with the first layers of the target, whose keys, values and states of drafted tokens are
those that the target's own pass would compute again: LayerSkip's exit query cache (Elhoushi et al. 2024, arXiv
2404.16710, section 4.3.3), Kangaroo (Liu et al. 2024, arXiv 2404.18911, section 3.1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from speculant.core.tree import Int32, Int64
from speculant.engines.hf.draft_rows import DraftRows, NewRows


@dataclass(frozen=True, slots=True, eq=False)
class ExitRows:
    """U rows whose keys and values are in the first layers of a cache, behind the committed ones, and in no others.

    Attributes:
        layers: how many.
        ids: Int64[U].
        rows: below the last committed token.
        states: [U, 1, D], the output of the last of these layers, in the parts in which it was computed.
    """

    layers: int
    ids: Int64
    rows: DraftRows
    states: tuple[Tensor, ...] = ()

    @classmethod
    def empty(cls, layers: int) -> ExitRows:
        """Return no rows."""
        return cls(layers, np.empty(0, np.int64), DraftRows())

    def __len__(self) -> int:
        return len(self.rows)

    def grown(self, new: NewRows, states: Tensor) -> ExitRows:
        """Return these rows and those of a pass behind them, with their states [n, 1, D]."""
        return ExitRows(self.layers, np.concatenate([self.ids, new.ids]), new.rows, (*self.states, states))

    def shared(self, tokens: Int32, parents: Int32) -> int:
        """Return how many of the first rows of a pass these are, tokens and parents alike."""
        count = min(len(self), len(tokens))
        same = (self.ids[:count] == tokens[:count]) & (self.rows.parents[:count] == parents[:count])
        return count if same.all() else int(same.argmin())

    def first(self, count: int) -> ExitRows:
        """Return the first rows alone."""
        if count == len(self):
            return self
        rows = self.rows
        kept = DraftRows(rows.parents[:count], rows.depths[:count], rows.ancestors[:count, :count])
        return ExitRows(self.layers, self.ids[:count], kept, (self.joined[:count],) if count else ())

    @property
    def joined(self) -> Tensor:
        """The states [U, 1, D] of all rows."""
        return self.states[0] if len(self.states) == 1 else torch.cat(self.states)
