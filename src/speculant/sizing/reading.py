"""Whether the rest of a text repays what a drafter must read before it drafts.

A head, or a draft model, reads everything committed before: with a long prompt that takes as long as many passes of the
target, and where answers are short their drafts cannot repay it, however good they are. So a text begins with plain
rounds until the drafts in what probably remains of it gain more than reading costs. How much remains is known from
recent texts that were longer; beyond all of them a text is expected to double. Once in a while a text that probably
does not repay it is read nevertheless, since drafts may have become better: on average this costs a small share of the
rounds that waited.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from speculant.core.tree import Float64
from speculant.sizing.pausing import MAX_DEBT
from speculant.sizing.state import SequenceSizing

SOME = 16  # tokens: minimum that counts as a reading; rounds commit fewer
_TEXTS = 32  # most recent texts, whose lengths are known
_READINGS = 16  # most recent readings, whose times are known
_SIMILAR = 2  # ratio up to which readings are of similar length, so that one tells what the other takes
_SHARE = 0.005  # tokens per waiting round that reading in vain may cost
_FIRST, _DOUBLINGS = 8, 12  # rounds: minimum wait; numbers of times that it may double


class Reading:
    """What reading takes, and how long recent texts were; shared by all requests.

    Attributes:
        lengths: tokens of the most recent texts, to which each one's state adds its own at the end.
    """

    def __init__(self) -> None:
        self.lengths: deque[int] = deque(maxlen=_TEXTS)
        self._readings: deque[tuple[int, float]] = deque(maxlen=_READINGS)  # tokens, and time of each
        self._spare, self._limit = 0.0, 0.0  # tokens that reading in vain may cost now, and at most

    def observe(self, tokens: int, time: float) -> None:
        """Add a reading; those shorter than `SOME` tokens do not count.

        Args:
            tokens: number of tokens read.
            time: time that it took, in units of the latency model's curve.
        """
        if tokens >= SOME:
            self._readings.append((tokens, time))

    def time(self, tokens: int) -> float:
        """Return the time of reading so many tokens, in units of the latency model's curve; 0 while it is not known.

        It is the median of readings of similar length: an interruption may have prolonged some.
        """
        known = list(self._readings) if tokens >= SOME else []
        similar = [time / read for read, time in known if max(read, tokens) <= _SIMILAR * min(read, tokens)]
        return tokens * float(np.median(similar)) if similar else 0.0

    def waits(self, state: SequenceSizing, price: float) -> bool:
        """Return whether a text waits with what its next draft must read, until its rest probably repays it.

        Args:
            state: the text, whose `backlog` and `wait` are set.
            price: tokens that a unit of time would yield without drafts; 0 if there is no room for drafts.
        """
        state.backlog = 0 if state.session is None else state.session.unread()
        if 0 < state.backlog < SOME:
            state.wait = 0  # what it waited for was given up
        elif not state.wait and state.backlog and price and not (state.session and state.session.selective):
            profit, room = state.pausing.profit_per_token, state.room - state.length
            state.wait = self.find_wait(state.length, room, state.backlog, profit, price)
        return bool(state.wait and state.backlog)

    def price_per_round(self, state: SequenceSizing, price: float) -> float:
        """Return a round's share of what reading costs in tokens, for sessions that choose whether to read."""
        cost = price * self.time(state.backlog) if state.session is not None and state.session.selective else 0.0
        if not cost:
            return 0.0
        rest = float(self._rests(state.length, state.room - state.length).mean())
        return cost * state.pausing.tokens_per_draft / max(1.0, rest)

    def count(self, state: SequenceSizing, tokens: int) -> None:
        """Count a round of a text, which committed so many tokens."""
        state.length += tokens
        if state.wait:
            state.wait -= 1
            self._spare = min(self._spare + _SHARE, self._limit)

    def find_wait(self, length: int, room: int, unread: int, profit: float, price: float) -> int:
        """Return the number of rounds without drafts until this is asked again; 0 to draft now.

        A reading that gains on average is put off, too, if it gains more once the short ones of recent texts have
        ended. Where drafts lose, their balance bounds the losses (`pausing`), except those of long readings.

        Args:
            length: length of the text.
            room: maximum number of tokens that it may gain.
            unread: number of tokens to read.
            profit: tokens that drafts gain for each token of a text; infinite if not known.
            price: tokens that a unit of time would yield without drafts.
        """
        cost = price * self.time(unread)
        if not cost or math.isinf(profit) or not self.lengths:
            return 0
        waits = max(_FIRST, length) * (2 ** np.arange(_DOUBLINGS) - 1)
        left = np.maximum(0.0, self._rests(length, room) - waits[:, None])
        costs = cost / unread * (unread + waits)[:, None] * (left > 0)
        gains: Float64 = np.asarray((max(0.0, profit) * left - costs).mean(axis=1), np.float64)
        best = int(np.argmax(gains))
        if gains[best] > 0:
            return int(waits[best])
        if profit <= 0 and cost <= MAX_DEBT:
            return 0
        self._limit = max(self._limit, cost)
        if self._spare >= cost:
            self._spare, self._limit = self._spare - cost, cost
            return 0
        return int(waits[1])

    def _rests(self, length: int, room: int) -> Float64:
        """Return Float64[n], what a text of this length may gain: what each recent one gained that was longer."""
        rests = [min(each - length, room) for each in list(self.lengths) if each > length]
        return np.array(rests or [min(length, room)], np.float64)
