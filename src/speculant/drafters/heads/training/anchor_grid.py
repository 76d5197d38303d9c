"""Anchors of a batch of texts as a grid, a row of places for each text."""

from __future__ import annotations

import torch
from torch import Tensor


class AnchorGrid:
    """A anchors in B texts, at most a in each.

    Attributes:
        places: Int64[B, a], their positions; those of places that no anchor has are 0.
    """

    def __init__(self, anchors: Tensor, texts: int) -> None:
        """Take the anchors.

        Args:
            anchors: Int64[A, 2], text and position; in any order, any number in a text.
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
        """Return [B, a, ...] of anchors [A, ...]; places that no anchor has are 0."""
        found = x.new_zeros(*self._used.shape, *x.shape[1:])
        found[self._used] = x[self._order]
        return found

    def flat(self, x: Tensor) -> Tensor:
        """Return anchors [A, ...] of [B, a, ...]."""
        return x[self._used][self._back]
