"""Pauses of drafting: where drafts cost more than they gain, none is asked for in some rounds.

Where drafts of late were expected to gain less than the time they took, and did, pauses begin short and double, until
asking again costs no more than a small share of the time. Either alone is no reason to pause: expectations may be too
low, and what drafts gained follows a change of the text too slowly.

Expectations can be too high, and what is spent on learning may never be earned. So what drafts cost and gained is
booked as well: their balance is in credit with what they gained, up to a limit, and with a small share of every round.
Where it is overdrawn, a draft that loses is followed by a pause, which lasts until that share has paid the debt back,
but no longer than twice the last one: drafts that are never right cost the share and no more in the end, and bad luck
costs little. A request goes on with the balance of the last one, and a small grant, so that it can find out for itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

_DECAY, _SLOW_DECAY = 0.9, 0.96  # per round in which a draft was asked for: of what is expected, and of what came
_USUAL = 8  # rounds of the longest pause by what drafts are expected to gain, where asking costs little
_MAXIMUM = 64  # rounds of the longest such pause at all
_VAIN = 0.015  # of the time that asking may take, by what drafts are expected to gain
_SHARE = 0.005  # of the tokens that drafts may lose
_DOUBLINGS = 12  # of pauses of debt
_FIRST_ASKS = 6  # before expectations are believed
_START, _GRANT, _LIMIT = 8.0, 0.25, 16.0  # tokens: the first balance, what a new request is granted, the most credit


@dataclass(slots=True)
class Pausing:
    """What drafts of late gained, and the rounds without any.

    Attributes:
        pause, left: rounds without a draft: how many at a time, and still to come.
        gained, asks: decayed: the tokens that drafts were expected to gain, and how often one was asked for.
        earned, squares, drafts: decayed slowly: the tokens that drafts gained more than their time would have yielded
            elsewhere, their squares, and how many drafts did; of earlier requests too.
        balance: tokens that drafts have gained more than their time would have yielded elsewhere.
        debts: pauses in a row since drafts lost what they did not have.
        seen: drafts that were asked for, in earlier requests too.
    """

    pause: int = 0
    left: int = 0
    gained: float = 0.0
    asks: float = 0.0
    earned: float = 0.0
    squares: float = 0.0
    drafts: float = 0.0
    balance: float = _START
    debts: int = 0
    seen: int = 0

    def begin(self) -> Pausing:
        """Return what a new request begins with."""
        balance = max(self.balance, min(self.balance + _GRANT, _GRANT))
        if self.pause > _USUAL:
            return replace(self, balance=balance)
        left = self.left if balance < 0 else 0
        return replace(self, balance=balance, pause=0, left=left, gained=0.0, asks=0.0)

    def follow(self, other: Pausing) -> None:
        """Be what the pauses of a request are now."""
        self.pause, self.left, self.gained, self.asks = other.pause, other.left, other.gained, other.asks
        self.balance, self.debts, self.seen = other.balance, other.debts, other.seen
        self.earned, self.squares, self.drafts = other.earned, other.squares, other.drafts

    def skip(self) -> None:
        """Count a round of a pause."""
        self.left -= 1
        self._book(0.0)

    def observe(self, gain: float, took: float, price: float, profit: float, *, resumed: bool = False) -> None:
        """Add a round in which a draft was asked for.

        The first draft after a pause is followed by another one, unless there are debts: what that one takes is usual.

        Args:
            gain: tokens that the draft was expected to gain.
            took: tokens that the usual time of drafting would have yielded elsewhere.
            price: tokens that a plain pass would have yielded.
            profit: tokens that the draft gained, less those that its time would have yielded without drafts.
            resumed: whether none was asked for in the round before.
        """
        if resumed and self.balance + profit >= 0:
            self._book(profit)
            self.left = 0
            return
        self.gained = _DECAY * self.gained + gain
        self.asks = _DECAY * self.asks + 1
        self.earned = _SLOW_DECAY * self.earned + profit
        self.drafts = _SLOW_DECAY * self.drafts + 1
        self.squares = _SLOW_DECAY * self.squares + profit * profit
        mean = self.earned / self.drafts
        doubt = math.sqrt(max(0.0, self.squares / self.drafts - mean * mean) / self.drafts)
        lost = min(took - self.gained / self.asks, -mean - doubt)
        longest = min(_MAXIMUM, max(_USUAL, math.ceil(lost / (_VAIN * price)))) if lost > 0 else 0
        # What drafts have gained outweighs what they are expected to lose, until half of the credit is spent.
        self.pause = min(longest, 2 * self.pause + 1) if lost > 0 and self.balance < _LIMIT / 2 else 0
        self._book(profit)
        # The first drafts tell what they cost and gain only one after the other; their balance bounds what they lose.
        self.seen += 1
        self.left = self.pause if self.seen >= _FIRST_ASKS else 0
        if profit > 0:
            self.debts = 0
        elif self.balance < 0:
            self.left = max(self.pause, min(math.ceil(-self.balance / _SHARE), _USUAL << self.debts))
            self.debts = min(self.debts + 1, _DOUBLINGS)

    def _book(self, profit: float) -> None:
        self.balance = min(_LIMIT, self.balance + _SHARE + profit)
