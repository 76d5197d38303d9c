"""Pauses of drafting: rounds without a draft while drafts cost more than they gain.

If recent drafts were expected to gain less than the time they took, and actually did, drafting pauses. Pauses begin
short and double until asking again costs only a small share of the time. Neither condition suffices alone: expectations
may be too low, and measured gains follow a change of the text too slowly.

Expectations can also be too high, and the cost of learning may never be recovered. So a balance of drafts' gains and
costs is kept as well: it is credited with what they gain, up to a limit, and with a small share of every round. While
it is overdrawn, a draft that loses is followed by a pause, which lasts until that share has repaid the debt, but at
most twice as long as the last one. So drafts that are never accepted cost only that share in the long run, and bad luck
costs little. A draft that gains does not shorten these pauses, since every second draft may gain although drafts lose
on balance. Drafts that gain more than chance explains are not paused until the debt exceeds that limit: they may repay
what reading a long prompt took. Where drafts lose more than chance explains, the first such pause is already so long
that the draft after it costs a small share of the time: short pauses would multiply what a draft that takes two passes
loses. A request inherits the balance of earlier ones that were like it (`history`), plus a small grant with which to
probe for itself.

All this judges the drafter as it was. One that keeps a memory may lose at first and gain later, and debt from its first
rounds must not hold it back. So its balance, if overdrawn, begins afresh whenever the number of rounds has doubled: the
credit is the same each time, and ever smaller relative to what was decoded since.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from operator import attrgetter

_DECAY, _SLOW_DECAY = 0.9, 0.96  # of expected and of measured gains, per round in which a draft was asked for
_USUAL = 8  # rounds: maximum pause due to low expectations, if asking costs little
_MAXIMUM = 64  # rounds: maximum pause due to low expectations in any case
_VAIN = 0.015  # share of the time that asking may cost while expectations are low, or drafts lose
_SHARE = 0.005  # tokens per round that drafts may lose
_DOUBLINGS = 12  # maximum number of times that pauses due to debt double
_FIRST_ASKS = 6  # drafts before expectations are trusted, unless they cost half of the initial balance before
_START, _GRANT, _LIMIT = 8.0, 0.25, 16.0  # tokens: initial balance, grant of a new request, maximum balance
MAX_DEBT = 8.0  # tokens: maximum debt from one reading, whose time an interruption may have prolonged
_RENEWAL, _FIRST_RENEWAL = 4.0, 512  # tokens: balance of a fresh beginning; rounds until the first one


@dataclass(slots=True)
class Pausing:
    """Recent gains of drafts, and the pauses that follow from them.

    Attributes:
        pause, left: rounds without a draft: length of a pause, and rounds that remain of the current one.
        gained, asks: decayed sums of the tokens that drafts were expected to gain, and of the drafts asked for.
        earned, squares, drafts, tokens: slowly decayed sums of the net gains of drafts in tokens (beyond what their
            time would have yielded elsewhere), of the squares of these gains, of the number of drafts, and of the
            tokens committed in their rounds; over all requests.
        credit: initial balance of the first request.
        balance: cumulative net gain of drafts, in tokens.
        debts: number of consecutive pauses due to an overdrawn balance.
        seen: number of drafts asked for, over all requests or since the last fresh beginning.
        rounds, due: number of rounds, and the number at which an overdrawn balance begins afresh; infinite if it never
            does.
    """

    pause: float = 0
    left: float = 0
    gained: float = 0.0
    asks: float = 0.0
    earned: float = 0.0
    squares: float = 0.0
    drafts: float = 0.0
    tokens: float = 0.0
    credit: float = _START
    balance: float = _START
    debts: float = 0
    seen: float = 0
    rounds: float = 0
    due: float = math.inf

    @classmethod
    def begun(cls, size: int, *, learns: bool = False) -> Pausing:
        """Return the first state of a batch of `size` requests, which together have the initial balance.

        Args:
            size: maximum number of requests.
            learns: whether the drafter gets better with what it reads, so that earlier losses lose their meaning.
        """
        credit = max(_GRANT, _START / size)
        return cls(credit=credit, balance=credit, due=_FIRST_RENEWAL if learns else math.inf)

    def begin(self) -> Pausing:
        """Return the state that a new request begins with after this one."""
        balance = max(self.balance, min(self.balance + _GRANT, _GRANT))
        pause, left, debts = round(self.pause), round(self.left), round(self.debts)  # they may be means
        if pause > _USUAL and balance < _LIMIT / 2:
            return replace(self, balance=balance, pause=pause, left=left, debts=debts)
        left = left if balance < 0 else 0
        return replace(self, balance=balance, pause=0, left=left, debts=debts, gained=0.0, asks=0.0)

    @classmethod
    def mean_of(cls, states: Collection[Pausing]) -> Pausing:
        """Return the mean of some states, with the initial credit of the first one."""
        if len(states) == 1:
            return replace(*states)
        first, sums = next(iter(states)), map(sum, zip(*map(_averaged, states), strict=True))
        return replace(first, **{name: total / len(states) for name, total in zip(_AVERAGED, sums, strict=True)})

    @property
    def tokens_per_draft(self) -> float:
        """Tokens that a round with a draft commits."""
        return self.tokens / self.drafts if self.drafts else 1.0

    @property
    def profit_per_token(self) -> float:
        """Tokens that drafts gain for each token of a text, if chance explains some losses; infinite if not known."""
        return sum(self._profit()) * self.drafts / self.tokens if self.drafts else math.inf

    def skip(self) -> None:
        """Wait for a round of a pause, and count it."""
        self.left -= 1
        self.count(1)

    def count(self, rounds: int) -> None:
        """Count rounds of a pause that have been waited for."""
        self._book(0.0, rounds)

    def observe(
        self,
        gain: float,
        took: float,
        price: float,
        profit: float,
        reading: float = 0.0,
        *,
        tokens: int = 1,
        resumed: bool = False,
    ) -> None:
        """Add a round in which a draft was asked for.

        Unless there is debt, the first draft after a pause is followed by a second one, whose time is representative.

        Args:
            gain: tokens that the draft was expected to gain.
            took: tokens that the usual drafting time would have yielded elsewhere.
            price: tokens that a plain pass would have yielded.
            profit: tokens that the draft gained, minus those that the time charged would have yielded without drafts.
            reading: tokens that the rest of its time would have yielded, in which the drafter read what was committed
                before, such as the prompt. It adds to the debt but tells nothing about the next draft.
            tokens: number of tokens committed in the round.
            resumed: whether no draft was asked for in the previous round.
        """
        spent = min(reading, MAX_DEBT)
        if resumed and self.balance + profit - spent >= 0:
            self._book(profit - spent)
            self.left = 0
            return
        self.gained = _DECAY * self.gained + gain
        self.asks = _DECAY * self.asks + 1
        self.earned = _SLOW_DECAY * self.earned + profit
        self.drafts = _SLOW_DECAY * self.drafts + 1
        self.squares = _SLOW_DECAY * self.squares + profit * profit
        self.tokens = _SLOW_DECAY * self.tokens + tokens
        mean, doubt = self._profit()
        lost = min(took - self.gained / self.asks, -mean - doubt)
        longest = min(_MAXIMUM, max(_USUAL, math.ceil(lost / (_VAIN * price)))) if lost > 0 else 0
        # Past gains outweigh expected losses until half of the maximum credit is spent.
        self.pause = min(longest, 2 * self.pause + 1) if lost > 0 and self.balance < _LIMIT / 2 else 0
        self._book(profit - spent)
        # The first drafts reveal their costs and gains only gradually; the balance bounds what they lose.
        self.seen += 1
        trusted = self.seen >= _FIRST_ASKS or (self.seen > 1 and self.balance < self.credit / 2)
        self.left = self.pause if trusted else 0
        if self.balance >= 0 or (mean - doubt > 0 and self.balance > -_LIMIT):
            self.debts = 0
        elif profit < 0:
            first = max(_USUAL, math.ceil(-profit / (_VAIN * price))) if mean + doubt < 0 else _USUAL
            self.left = max(self.pause, min(math.ceil(-self.balance / _SHARE), first << int(self.debts)))
            self.debts = min(self.debts + 1, _DOUBLINGS)

    def _profit(self) -> tuple[float, float]:
        """Return the mean net gain of drafts in tokens, and its standard error."""
        mean = self.earned / self.drafts
        return mean, math.sqrt(max(0.0, self.squares / self.drafts - mean * mean) / self.drafts)

    def _book(self, profit: float, rounds: int = 1) -> None:
        """Add rounds that gained `profit` tokens to the balance."""
        self.balance = min(_LIMIT, self.balance + _SHARE * rounds + profit)
        self.rounds += rounds
        if self.rounds >= self.due:
            self.due = 2 * self.rounds
            if self.balance < 0:
                self._begin_afresh()

    def _begin_afresh(self) -> None:
        """Forget what earlier drafts lost, and end a pause soon."""
        self.left = min(self.left, _USUAL)  # not 0: what a draft needs of a pass is requested before a pause ends
        self.pause = self.debts = self.seen = 0
        self.gained = self.asks = self.earned = self.squares = self.drafts = self.tokens = 0.0
        self.credit = self.balance = _RENEWAL


_AVERAGED = tuple(field.name for field in fields(Pausing) if field.name != "credit")
_averaged = attrgetter(*_AVERAGED)  # in a batch it runs for all texts whenever one begins
