"""What a head adds to a memory's draft, so that it rests in rounds where that is less than its time is worth.

Where a memory has seen the text, it is right for many tokens, and a head's levels take longer than they gain. Rounds
are told apart by how many tokens the memory expects to be accepted; in each band of that, what the union had accepted
beyond the memory's own draft is compared with the time of the levels that the head grew.
"""

from __future__ import annotations

from bisect import bisect_right

_EDGES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # tokens that the memory expects
_DECAY = 0.98  # per round of a band; rounds without the head are forgotten likewise, so that it is asked again
_PRIOR_GAIN, _PRIOR_LEVELS, _PRIOR = 2.0, 3.0, 6.0  # of a round, and how many rounds they count as


class HeadGain:
    """Tokens that a head gained beside a memory and levels that it grew for them, over all requests."""

    def __init__(self) -> None:
        bands = len(_EDGES) + 1
        self._rounds, self._gained, self._levels = [0.0] * bands, [0.0] * bands, [0.0] * bands

    def pays(self, expected: float, *, start_price: float, level_price: float) -> bool:
        """Return whether the head should draft.

        Args:
            expected: tokens of the memory's draft that should be accepted.
            start_price, level_price: see `Budget`.
        """
        band = bisect_right(_EDGES, expected)
        rounds, levels = self._rounds[band] + _PRIOR, self._levels[band] + _PRIOR * _PRIOR_LEVELS
        pays = self._gained[band] + _PRIOR * _PRIOR_GAIN > start_price * rounds + level_price * levels
        if not pays:
            self._decay(band)
        return pays

    def observe(self, expected: float, gained: int, levels: int) -> None:
        """Count a round with the head.

        Args:
            expected: as for `pays`.
            gained: tokens of the united draft that were accepted, less those of the memory's own.
            levels: that the head grew.
        """
        band = bisect_right(_EDGES, expected)
        self._decay(band)
        self._rounds[band] += 1
        self._gained[band] += gained
        self._levels[band] += levels

    def _decay(self, band: int) -> None:
        for counts in (self._rounds, self._gained, self._levels):
            counts[band] *= _DECAY
