"""The anchors of a batch of texts as a grid with one row per text."""

from __future__ import annotations

import torch
from torch import Tensor


class AnchorGrid:
    """A anchors in B texts, at most a in each.

    Attributes:
        places: Int64[B, a], their positions; 0 in unused cells.
    """

    def __init__(self, anchors: Tensor, texts: int) -> None:
        """Arrange the anchors.

        Args:
            anchors: Int64[A, 2], text and position; in any order, any number per text.
            texts: B.
        """
        text, places = anchors.unbind(1)
        self._order = torch.argsort(text, stable=True)
        self._back = torch.argsort(self._order)
        counts = torch.bincount(text, minlength=texts)
        self._used = torch.arange(max(1, int(counts.max())), device=anchors.device) < counts[:, None]  # Bool[B, a]
        self.places = torch.zeros_like(self._used, dtype=torch.long)
        self.places[self._used] = places[self._order]

    def spread(self, x: Tensor) -> Tensor:
        """Arrange values [A, ...] of the anchors as [B, a, ...], with 0 in unused cells."""
        found = x.new_zeros(*self._used.shape, *x.shape[1:])
        found[self._used] = x[self._order]
        return found

    def flat(self, x: Tensor) -> Tensor:
        """Return the values [A, ...] of the anchors from [B, a, ...]."""
        return x[self._used][self._back]
