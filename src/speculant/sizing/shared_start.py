"""The part of a round's drafting time that its texts share.

The first text that drafts after a pass finds code and memory outside the processor's caches, which the pass has filled
with weights; the next ones find them there. Where few texts of a batch draft, each would be charged many times what it
would cost beside others, and drafts that gain once all texts draft would never be tried.
"""

from __future__ import annotations

import numpy as np

from speculant.core.tree import Float64

_DECAY = 0.98  # per round
_SPREAD = 0.5  # texts by which rounds must roughly differ before time is attributed to the round rather than its texts
_MAX_SHARE = 0.5  # maximum part of a round's drafting time that is shared


class SharedStart:
    """Decayed regression line of drafting time by the number of texts that draft."""

    def __init__(self) -> None:
        self._sums: Float64 = np.zeros(5)  # rounds, texts, texts squared, time, texts times time

    def observe(self, texts: int, time: float) -> float:
        """Add a round; return the part of its time that does not depend on the number of texts.

        Args:
            texts: number of texts that drafted, above 0.
            time: drafting time of the round.
        """
        self._sums *= _DECAY
        self._sums += 1, texts, texts * texts, time, texts * time
        rounds, x, xx, y, xy = self._sums.tolist()
        doubt = (rounds * _SPREAD) ** 2
        each = (rounds * xy - x * y + doubt * y / x) / (rounds * xx - x * x + doubt)
        return float(min(max(0.0, (y - each * x) / rounds), _MAX_SHARE * time))
