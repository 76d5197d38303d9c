"""What a head adds to a memory's draft, so that it rests in rounds where that is less than its time is worth.

Where a memory has seen the text, it is right for many tokens, and a head's levels take longer than they gain. Rounds
are told apart by how many tokens the memory expects to be accepted; in each band of that, what the union had accepted
beyond the memory's own draft is compared with the time of the levels that the head grew.
"""

from __future__ import annotations

from bisect import bisect_right

_EDGES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # tokens that the memory expects
_DECAY = 0.98  # per round of a band with the head, so that a band tends to what all gained of late
_REST = 0.99  # the same, per round without it
_PRIOR = 12.0  # rounds of a band as which the rounds of all bands count: rounds differ by more tokens than heads gain
_FIRST_GAIN, _FIRST_LEVELS, _FIRST = 2.0, 3.0, 12.0  # of a round, before any, and how many rounds they count as
_WAIT, _LONGEST = 16, 512  # rounds without the head until it is tried all the same


class HeadGain:
    """Tokens that a head gained beside a memory and levels that it grew for them, over all requests.

    A head that does not pay is tried again after some rounds without it, and after twice as many where that lost too.
    """

    def __init__(self) -> None:
        bands = len(_EDGES) + 1
        self._all = [_FIRST, _FIRST * _FIRST_GAIN, _FIRST * _FIRST_LEVELS]  # rounds, tokens and levels
        self._bands = [[0.0, 0.0, 0.0] for _ in range(bands)]
        self._wait, self._left, self._trial, self._prices = _WAIT, _WAIT, False, (0.0, 0.0)

    def pays(self, expected: float, *, start_price: float, level_price: float) -> bool:
        """Return whether the head should draft.

        Args:
            expected: tokens of the memory's draft that should be accepted.
            start_price, level_price: see `Budget`.
        """
        band, share = self._bands[bisect_right(_EDGES, expected)], _PRIOR / self._all[0]
        rounds, gained, levels = (own + share * each for own, each in zip(band, self._all, strict=True))
        self._trial, self._prices = False, (start_price, level_price)
        if gained > start_price * rounds + level_price * levels:
            return True
        band[:] = (_REST * each for each in band)
        self._left -= 1
        self._trial = self._left <= 0
        return self._trial

    def observe(self, expected: float, gained: int, levels: float) -> None:
        """Count a round with the head.

        Args:
            expected: as for `pays`.
            gained: tokens of the united draft that were accepted, less those of the memory's own.
            levels: that the head grew, see `HeadSession.levels`.
        """
        for counts in (self._all, self._bands[bisect_right(_EDGES, expected)]):
            counts[:] = (_DECAY * each + new for each, new in zip(counts, (1.0, gained, levels), strict=True))
        if self._trial:
            start_price, level_price = self._prices
            lost = gained <= start_price + level_price * levels
            self._wait = min(2 * self._wait, _LONGEST) if lost else _WAIT
            self._left, self._trial = self._wait, False
