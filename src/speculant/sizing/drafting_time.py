"""Drafting time of a round: what it usually is, and what one more node or level adds to it.

The time per node is the slope of a regression line through recent rounds. A round that took far longer than usual for
its nodes was interrupted: it does not predict the next one and counts as a moderately slow one. Nothing counts as usual
before the second round. Times are in units of the latency model's curve.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from speculant.core.tree import Float64, Int64

_WINDOW = 15  # recent rounds that are kept
_STALL = 4.0  # times the lower quartile: drafting that takes longer was interrupted
_BOOKED = 1.5  # times the lower quartile: maximum drafting time charged to a round, since stalls of passes do not count
_START = 8  # assumed time of a draft before its first node, in nodes, for recognising stalls
_DECAY = 0.98
_SPREAD = 16.0  # nodes by which draft sizes must roughly differ before drafting time is attributed to nodes
_EVEN_SPREAD = 2.0  # the same if every node, or level, takes a pass of a model
_LEVEL_SPREAD = 1.0  # levels: the same for the time of one more level

# What is kept of recent rounds: times; times divided by nodes + `_START`, of rounds without and with nodes (or levels);
# times of drafts without levels that take time.
_TIMES, _WITHOUT, _WITH, _FREE = range(4)
_NODE, _LEVEL, _USUAL, _LEVEL_START, _EXCESS = range(5)  # what is known


class DraftingTime:
    """Drafting times of recent rounds, per sequence."""

    def __init__(self) -> None:
        self._recent: Float64 = np.zeros((4, _WINDOW))
        self._counts: Int64 = np.zeros(4, np.int64)
        self._line: Float64 = np.zeros(5)  # decayed sums: rounds, nodes, nodes squared, time, nodes times time
        self._found: Float64 = np.array([0.0, 0.0, 0.0, 0.0, np.nan])

    @property
    def per_node(self) -> float:
        """Time of one more node; it tends to 0 while sizes differ too little to tell, unless all nodes take a pass."""
        return float(self._found[_NODE])

    @property
    def per_level(self) -> float:
        """Time of one more level; near 0 while depths differ too little to tell, so that deeper drafts are tried."""
        return float(self._found[_LEVEL])

    @property
    def usual(self) -> float:
        """Usual time of a round: the lower quartile, which is robust to stalls; 0 before the second round."""
        return float(self._found[_USUAL])

    @property
    def level_start(self) -> float:
        """Fixed time of drafting by levels, in excess of a draft without levels."""
        return float(self._found[_LEVEL_START])

    @property
    def excess(self) -> float:
        """Time of the last round beyond that charged, as for reading a prompt; NaN before it is known what is usual."""
        return float(self._found[_EXCESS])

    def observe(self, nodes: float, time: float, *, even: bool = False, usual: bool = True) -> float:
        """Add the drafting and learning time of a sequence in a round; return the time charged.

        Args:
            nodes: number of nodes drafted, or of levels if drafting takes a model's pass per level.
            time: drafting time.
            even: whether every node takes the same time. While sizes differ too little to estimate a slope, `per_node`
                tends to the mean time per node; if not `even`, to 0, since a search takes most of its time before the
                first node.
            usual: whether this round's time is representative.
        """
        charged: float = _observe(self._recent, self._counts, self._line, self._found, float(nodes), time, even, usual)
        return charged


@njit(cache=True)
def _observe(recent, counts, line, found, nodes, time, even, usual):  # type: ignore[no-untyped-def]
    known = counts[_WITH if nodes > 0 else _WITHOUT] > 1
    charged = _charge(recent, counts, line, found, nodes, time, even, usual)
    found[_EXCESS] = time - charged if known else np.nan
    found[_USUAL] = _lower_quartile(recent, counts, _TIMES) if counts[_TIMES] > 1 else 0.0
    if line[0]:
        free = _lower_quartile(recent, counts, _FREE) if counts[_FREE] else 0.0
        found[_LEVEL_START] = max(0.0, (line[3] - found[_LEVEL] * line[1]) / line[0] - free)
    return charged


@njit(cache=True)
def _charge(recent, counts, line, found, nodes, time, even, usual):  # type: ignore[no-untyped-def]
    """Add a round and return the time charged."""
    rates = _WITH if nodes > 0 else _WITHOUT
    if even and not nodes:
        _add(recent, counts, _FREE, time)
    if not usual and counts[rates] > 1:
        return min(time, _BOOKED * _lower_quartile(recent, counts, rates) * (nodes + _START))
    _add(recent, counts, _TIMES, time)
    _add(recent, counts, rates, time / (nodes + _START))
    if counts[rates] == 1:
        return 0.0
    rate = _lower_quartile(recent, counts, rates) * (nodes + _START)
    if even and not nodes:
        return min(time, _BOOKED * rate)
    time = min(time, _STALL * rate)
    line *= _DECAY
    line[0] += 1
    line[1] += nodes
    line[2] += nodes * nodes
    line[3] += time
    line[4] += nodes * time
    rounds, x, xx, y, xy = line
    doubt = (rounds * (_EVEN_SPREAD if even else _SPREAD)) ** 2 / 16
    each = doubt * y / x if even and x else 0.0
    covariance, variance = rounds * xy - x * y, rounds * xx - x * x
    found[_NODE] = max(0.0, (covariance + each) / (variance + doubt))
    found[_LEVEL] = max(0.0, covariance / (variance + (rounds * _LEVEL_SPREAD) ** 2 / 16))
    return min(time, _BOOKED * rate)


@njit(cache=True)
def _add(recent, counts, row, value):  # type: ignore[no-untyped-def]
    recent[row, counts[row] % _WINDOW] = value
    counts[row] += 1


@njit(cache=True)
def _lower_quartile(recent, counts, row):  # type: ignore[no-untyped-def]
    """Return the lower quartile of a row, by insertion into a sorted copy; `np.sort` takes seconds to compile."""
    count = min(counts[row], _WINDOW)
    ordered = np.empty(count)
    for place in range(count):
        value, at = recent[row, place], place
        while at > 0 and ordered[at - 1] > value:
            ordered[at] = ordered[at - 1]
            at -= 1
        ordered[at] = value
    return ordered[(count - 1) // 4]
