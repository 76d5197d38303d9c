"""Pauses of drafting: where drafts gained less than the time they took, none is asked for in some rounds.

The first pauses are short. They double while drafts do not pay, until asking again costs no more than a small share of
the time. Where drafting takes so long that pauses get long, a new request goes on with those of the last one: it would
ask in vain as often as that did.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

_DECAY = 0.9  # per round in which a draft was asked for
_USUAL = 8  # rounds of the longest pause, where asking costs little
_MOST = 64  # rounds of the longest pause at all
_SHARE = 0.015  # of the time that asking in vain may cost


@dataclass(slots=True)
class Pausing:
    """What drafts of late gained, and the rounds without any.

    Attributes:
        pause, left: rounds without a draft: how many at a time, and still to come.
        gained, asks: decayed: the tokens that drafts were expected to gain, and how often one was asked for.
    """

    pause: int = 0
    left: int = 0
    gained: float = 0.0
    asks: float = 0.0

    def begin(self) -> Pausing:
        """Return what a new request begins with."""
        return replace(self) if self.pause > _USUAL else Pausing()

    def follow(self, other: Pausing) -> None:
        """Be what the pauses of a request are now."""
        self.pause, self.left, self.gained, self.asks = other.pause, other.left, other.gained, other.asks

    def skip(self) -> None:
        """Count a round of a pause."""
        self.left -= 1

    def observe(self, gain: float, took: float, price: float) -> None:
        """Add a round in which a draft was asked for.

        Args:
            gain: tokens that the draft was expected to gain.
            took: tokens that the usual time of drafting would have yielded elsewhere.
            price: tokens that a plain pass would have yielded.
        """
        self.gained = _DECAY * self.gained + gain
        self.asks = _DECAY * self.asks + 1
        lost = took - self.gained / self.asks
        longest = min(_MOST, max(_USUAL, math.ceil(lost / (_SHARE * price)))) if lost > 0 else 0
        self.pause = self.left = min(longest, 2 * self.pause + 1) if lost > 0 else 0
