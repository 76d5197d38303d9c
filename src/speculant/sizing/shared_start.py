"""The part of a round's drafting time that its texts share.

The first text that drafts after a pass finds code and memory outside the processor's caches, which the pass has filled
with weights; the next ones find them there. Where few texts of a batch draft, each would be charged many times what it
would cost beside others, and drafts that gain once all texts draft would never be tried.
"""

from __future__ import annotations

_DECAY = 0.98  # per round
_SPREAD = 0.5  # texts by which rounds must roughly differ before time is attributed to the round rather than its texts
_MAX_SHARE = 0.5  # maximum part of a round's drafting time that is shared
_STALL = 3.0  # times the predicted time: drafting that takes longer was interrupted


class SharedStart:
    """Decayed regression line of drafting time by the number of texts that draft."""

    def __init__(self) -> None:
        self._rounds = self._texts = self._squares = self._time = self._product = 0.0  # decayed sums

    def observe(self, texts: int, time: float) -> float:
        """Add a round; return the part of its time that does not depend on the number of texts.

        Args:
            texts: number of texts that drafted, above 0.
            time: drafting time of the round, in units of the latency model's curve.
        """
        shared, each = self._line()
        usual = min(time, _STALL * (shared + each * texts)) if self._time else time
        self._rounds, self._texts = _DECAY * self._rounds + 1, _DECAY * self._texts + texts
        self._squares, self._product = _DECAY * self._squares + texts * texts, _DECAY * self._product + texts * usual
        self._time = _DECAY * self._time + usual
        return min(self._line()[0], _MAX_SHARE * time)

    def _line(self) -> tuple[float, float]:
        """Return the time of a round, and that of each text in it."""
        rounds, texts, time = self._rounds, self._texts, self._time
        if not rounds:
            return 0.0, 0.0
        doubt = (rounds * _SPREAD) ** 2
        each = (rounds * self._product - texts * time + doubt * time / texts) / (
            rounds * self._squares - texts * texts + doubt
        )
        return max(0.0, (time - each * texts) / rounds), max(0.0, each)
