"""Whether the rest of a text repays what a drafter must read before its first draft in it.

A head, or a draft model, reads everything committed before: with a long prompt that takes as long as many passes of the
target, and where answers are short their drafts cannot repay it, however good they are. So a text begins with plain
rounds until the drafts in what probably remains of it gain more than reading costs. How much remains is the mean of
recent texts that were at least as long; beyond all of them a text is expected to double. Once in a while a text that
probably does not repay it is read nevertheless, since drafts may have become better: on average this costs a small
share of the rounds.
"""

from __future__ import annotations

import math

import numpy as np

from speculant.core.tree import UNLIMITED, Float64, Int64

_TEXTS = 32  # most recent texts, whose lengths are known
_READINGS = 7  # most recent readings: their median is what a token takes, robust to interruptions
_FEW = 16  # tokens: a shorter reading takes mostly what it takes to begin, and tells little about a token
_SHARE = 0.005  # tokens per round without drafts that reading in vain may cost
_FIRST, _DOUBLINGS = 8, 12  # rounds: minimum time until it is decided again; how often it may double


class Reading:
    """What reading a token takes, and how long recent texts were; shared by all requests."""

    def __init__(self, size: int = 1) -> None:
        """Begin without knowledge.

        Args:
            size: maximum number of texts at a time.
        """
        self._lengths: Int64 = np.zeros(max(_TEXTS, 2 * size), np.int64)
        self._rooms = np.zeros_like(self._lengths)
        self._texts = 0
        self._times: Float64 = np.zeros(_READINGS)
        self._readings = 0
        self._spare = 0.0  # tokens that reading in vain may cost now

    def open(self, room: int = UNLIMITED) -> int:
        """Return the place of a new text, whose length is 0, and which may gain `room` tokens at most."""
        place = self._texts % len(self._lengths)
        self._lengths[place], self._rooms[place] = 0, room
        self._texts += 1
        return place

    def lengthen(self, place: int, tokens: int) -> None:
        """Add tokens to the length of the text at this place."""
        self._lengths[place] += tokens

    def observe(self, unread: int, time: float) -> None:
        """Add a reading.

        Args:
            unread: number of tokens read.
            time: time that it took, in units of the latency model's curve.
        """
        if unread >= _FEW:
            self._times[self._readings % _READINGS] = time / unread
            self._readings += 1

    def time(self, unread: int) -> float:
        """Return the time of reading so many tokens, in units of the latency model's curve; 0 while it is not known."""
        if unread < _FEW or not self._readings:
            return 0.0
        return unread * float(np.median(self._times[: self._readings]))

    def remaining(self, place: int) -> float:
        """Return how many tokens the text at this place is expected to gain."""
        return float(self._rests(place).mean())

    def find_pause(self, place: int, unread: int, profit: float, price: float) -> int:
        """Return the number of rounds without drafts until this is asked again; 0 to draft now.

        A reading that gains on average is put off, too, if it gains more once the short ones of recent texts have
        ended.

        Args:
            place: place of the text.
            unread: number of tokens to read.
            profit: tokens that drafts gain for each token of a text; infinite if not known.
            price: tokens that a unit of time would yield without drafts.
        """
        cost = price * self.time(unread)
        if not cost or math.isinf(profit):
            return 0
        waits = max(_FIRST, int(self._lengths[place])) * (2 ** np.arange(_DOUBLINGS) - 1)
        left = np.maximum(0.0, self._rests(place) - waits[:, None])
        costs = cost / unread * (unread + waits)[:, None] * (left > 0)
        gains: Float64 = np.asarray((max(0.0, profit) * left - costs).mean(axis=1), np.float64)
        best = int(np.argmax(gains))
        if best == 0 and gains[0] >= 0:
            return 0
        if gains[best] > 0:
            return int(waits[best])
        lost, rounds = -float(gains[0]), int(waits[1])
        if self._spare >= lost:
            self._spare -= lost
            return 0
        self._spare = min(self._spare + _SHARE * rounds, lost)
        return rounds

    def _rests(self, place: int) -> Float64:
        """Return Float64[n], tokens that this text may gain: what recent ones gained that were at least as long."""
        lengths, length = self._lengths[: self._texts], self._lengths[place]
        longer = lengths[lengths > length]
        rests = longer - length if len(longer) else np.array([length])
        return np.asarray(np.minimum(rests, self._rooms[place] - length), np.float64)
