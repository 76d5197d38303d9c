"""The first layers' results for a draft's rows, from which the verifying pass continues.

Self-speculative methods draft with the first layers of the target. The keys, values and states of drafted tokens are
the same that the target's own pass would recompute: LayerSkip's exit query cache (Elhoushi et al. 2024, arXiv
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
    """U rows whose keys and values are in the first layers of a cache only, after the committed rows.

    Attributes:
        layers: number of these layers.
        ids: Int64[U].
        rows: the rows below the last committed token.
        states: [U, 1, D], the output of the last of these layers, split as it was computed.
    """

    layers: int
    ids: Int64
    rows: DraftRows
    states: tuple[Tensor, ...] = ()

    @classmethod
    def empty(cls, layers: int) -> ExitRows:
        """Return an empty set of rows."""
        return cls(layers, np.empty(0, np.int64), DraftRows())

    def __len__(self) -> int:
        return len(self.rows)

    def grown(self, new: NewRows, states: Tensor) -> ExitRows:
        """Return these rows with those of a pass appended, with their states [n, 1, D]."""
        return ExitRows(self.layers, np.concatenate([self.ids, new.ids]), new.rows, (*self.states, states))

    def count_shared(self, tokens: Int32, parents: Int32) -> int:
        """Return how many leading rows of a pass are the same, in tokens and parents."""
        count = min(len(self), len(tokens))
        same = (self.ids[:count] == tokens[:count]) & (self.rows.parents[:count] == parents[:count])
        return count if same.all() else int(same.argmin())

    def first(self, count: int) -> ExitRows:
        """Return the first `count` rows."""
        if count == len(self):
            return self
        rows = self.rows
        ancestors = np.ascontiguousarray(rows.ancestors[:count, :count])  # numba compiles for each layout of an array
        kept = DraftRows(rows.parents[:count], rows.depths[:count], ancestors)
        return ExitRows(self.layers, self.ids[:count], kept, (self.joined[:count],) if count else ())

    @property
    def joined(self) -> Tensor:
        """The states [U, 1, D] of all rows."""
        return self.states[0] if len(self.states) == 1 else torch.cat(self.states)
