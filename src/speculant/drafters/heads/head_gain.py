"""What a head adds to a memory's draft, so that it pauses in rounds where the gain is not worth its time.

If a memory has seen the text, many of its tokens are accepted, and a head's levels cost more time than they gain.
Rounds are grouped into bands by how many tokens the memory expects to be accepted; in each band, the tokens accepted
from the union beyond the memory's own draft are compared with the time of the levels that the head grew.
"""

from __future__ import annotations

from bisect import bisect_right

_EDGES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # band edges: tokens that the memory expects to be accepted
_DECAY = 0.98  # per round with the head, so that a band tends to the recent average over all bands
_REST = 0.99  # per round without the head, for the same reason
_PRIOR = 12.0  # rounds that the average over all bands counts as: rounds vary by more tokens than heads gain
_FIRST_GAIN, _FIRST_LEVELS, _FIRST = 2.0, 3.0, 12.0  # initial tokens and levels per round, and the rounds they count as
_WAIT, _LONGEST = 16, 512  # rounds without the head until it is tried again: initially and at most


class HeadGain:
    """Statistics of the tokens that a head gained over a memory and the levels it grew, over all requests.

    A head that does not pay off is tried again after some rounds without it, and after twice as many if that fails too.
    """

    def __init__(self) -> None:
        bands = len(_EDGES) + 1
        self._all = [_FIRST, _FIRST * _FIRST_GAIN, _FIRST * _FIRST_LEVELS]  # counts of rounds, tokens and levels
        self._bands = [[0.0, 0.0, 0.0] for _ in range(bands)]
        self._wait, self._left, self._trial, self._prices = _WAIT, _WAIT, False, (0.0, 0.0)

    def pays(self, expected: float, *, start_price: float, level_price: float) -> bool:
        """Return whether the head should draft.

        Args:
            expected: number of tokens of the memory's draft that are expected to be accepted.
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
            gained: accepted tokens of the united draft, minus those of the memory's own draft.
            levels: levels that the head grew, see `HeadSession.levels`.
        """
        for counts in (self._all, self._bands[bisect_right(_EDGES, expected)]):
            counts[:] = (_DECAY * each + new for each, new in zip(counts, (1.0, gained, levels), strict=True))
        if self._trial:
            start_price, level_price = self._prices
            lost = gained <= start_price + level_price * levels
            self._wait = min(2 * self._wait, _LONGEST) if lost else _WAIT
            self._left, self._trial = self._wait, False
