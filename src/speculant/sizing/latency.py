"""Latency model: what a round costs by the draft rows of its pass, corrected by every round.

Costs are relative to a pass without a draft at the machine's speed of the moment. A machine that others use as well is
half as fast for minutes, and a size tried in such a minute would look expensive for ever. So the seconds of a pass are
taken as level x cost: the level is the machine's speed just now and follows within a few rounds, the cost belongs to
the size and moves slowly. Each pass moves both, by shares of the same logarithmic error, as a Kalman filter with a
fast and a slow state does. Where only one size is run nothing tells speed from cost; sharing the error keeps the two
from drifting apart then, as they would if each had an estimator of its own.

A stall (code is loaded, another program has the processor) makes a pass slow and never fast. So a slow pass counts only
if the last pass of its size was slow as well, and then only as much as the faster of the two; no size costs more than
as many plain passes as its pass has rows, which would compute the same; and a size that has not been tried for a while
loses half of what it costs above the size below, so that it is tried again.

Kernels compute rows in blocks: llama.cpp's take 2.9 plain passes for 4 rows, 4.2 for 5, 4.9 for 7 and 4.5 for 8. So the
sizes that are tried one after the other are whole blocks, and up to 16 every number of rows has a cost beside. The
curve is the nearest one that never falls: where rows cost more than a whole block does, they cost about as much as that
block in it, which is all that the choice of a size needs to know, and errors of single sizes do not add up.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import numpy.typing as npt
from numba import njit

from speculant.core.tree import Float64
from speculant.sizing.isotonic import rising_fit
from speculant.sizing.step_cost import StepCost

SIZES = (0, 1, 3, 7, 11, 15, 23, 31, 47, 63, 95, 127, 191, 255)  # with the first row: 1, 2, and blocks of 4 and more
_SINGLE = 16  # draft rows up to which each number of rows has a cost of its own
_TRIES = 2  # passes of a size before the next larger one may be tried
_KNOWN = 2  # a measured curve counts like so many passes of each size
_UNTRIED = 1.05  # assumed cost of a size that was never tried, in passes of the size below
_STEEP = 0.5  # and what each further row is assumed to cost, in what a row beyond the first costs
_FOLLOW = 0.3  # share of a pass's error that moves the level
_LEARN = 0.06  # share that moves the cost of its size, once that is known
_JUMP = math.log(2)  # the largest error that counts
_FORGET = 64  # rounds without a try after which a size is believed to be cheaper; twice as many each time
_SAME = 0.004  # a smaller change of a size's cost is no reason to compute the curve again
_DRAFT_TIMES = 15
_STALL = 4.0  # times the lower quartile: drafting that takes longer was interrupted
_BOOKED = 1.5  # times it: what is booked of one round's drafting at most, as passes count without their stalls
_START = 8  # nodes whose time a draft takes before its first node, as far as stalls are recognised
_DECAY = 0.98
_SPREAD = 16.0  # nodes: sizes of drafts must differ by about as much before drafting time is attributed to them
_EVEN_SPREAD = 2.0  # the same where every node, or level, takes a pass of a model
_LEVEL_SPREAD = 1.0  # levels: the same for the time of a further level


class LatencyModel:
    """Seconds of a round by the rows of its pass beyond the first."""

    def __init__(self, *, maximum: int, known: StepCost | None = None) -> None:
        """Begin with a measured curve, or with none.

        Args:
            maximum: the most draft rows of a pass.
            known: seconds of a pass on this model and device; None to climb from size to size as long as it pays.
        """
        self.sizes = np.array([size for size in SIZES if size < maximum] + [maximum])
        sizes = measured_sizes(maximum)
        self._ends = np.array(sizes)  # the most rows of each size that has a cost
        self._bucket = np.searchsorted(sizes, np.arange(maximum + 1)).tolist()  # rows -> index of their size
        self._climbed = np.flatnonzero(np.isin(sizes, self.sizes)).tolist()
        self._known = known is not None
        plain = 1.0 if known is None else float(known.of(np.zeros(1))[0])
        self._base = np.ones(maximum + 1) if known is None else known.of(np.arange(maximum + 1)) / plain
        self._factors = np.zeros(len(sizes))  # of each size, over `_base`, in logarithms
        self._rows = np.zeros(len(sizes))  # mean of the passes of each size
        self._tried = np.zeros(len(sizes), np.int64)
        self._sizes_tried = 0
        self._evidence = [0] * len(sizes)  # passes of each size since its cost was forgotten
        self._last = [0.0] * len(sizes)  # error of the last pass of each size
        self._turn, self._patience = 0, [_FORGET] * len(sizes)
        self._due = [_FORGET] * len(sizes)  # turn in which each size is forgotten, unless it is tried before
        self._fitted = self._factors.copy()  # what `_curve` was computed with
        self._level = plain
        self._curve = self._base
        self._maximum = int(self.sizes[-1 if known is not None else 0])
        self._draft_times: deque[float] = deque(maxlen=_DRAFT_TIMES)
        # Times over nodes, `_START` more of them; apart where drafts cost nothing by the node or level.
        self._draft_rates: tuple[deque[float], deque[float]] = deque(maxlen=_DRAFT_TIMES), deque(maxlen=_DRAFT_TIMES)
        self._line = [0.0] * 5  # decayed: rounds, nodes, nodes squared, time of drafting, time by nodes
        self._free_times: deque[float] = deque(maxlen=_DRAFT_TIMES)  # of drafts without a level that takes time
        self.drafting = self.further_level = 0.0

    @property
    def maximum(self) -> int:
        """The most draft rows that may be spent now: without a measured curve, one size more than has been tried."""
        return self._maximum

    @property
    def level(self) -> float:
        """Seconds that one unit of `curve` stands for now."""
        return self._level

    @property
    def curve(self) -> Float64:
        """Float64[most + 1], the cost of passes over 0, 1, ... draft rows; 0 rows cost about 1."""
        return self._curve

    def seconds(self, rows: npt.NDArray[np.integer]) -> Float64:
        """Return the seconds Float64[P] that passes over Int[P] draft rows take now."""
        return np.asarray(self._level * self._curve[np.minimum(rows, len(self._curve) - 1)], np.float64)

    def observe(self, rows: int, seconds: float) -> None:
        """Add the seconds of a pass over so many draft rows."""
        rows = min(rows, len(self._base) - 1)
        i, base = self._bucket[rows], float(self._base[rows])
        if not self._sizes_tried:
            self._level = seconds / base
        tried, evidence, factor = int(self._tried[i]), self._evidence[i], float(self._factors[i])
        if not tried:
            self._sizes_tried += 1
            factor = self._expect_factor(i, rows)
        error = math.log(seconds / (self._level * base)) - factor
        counted = error if error < 0 else min(error, max(0.0, self._last[i]))
        counted = min(max(counted, -_JUMP), _JUMP)
        self._last[i] = error
        self._tried[i], self._evidence[i] = tried + 1, evidence + 1
        self._rows[i] += (rows - float(self._rows[i])) / min(tried + 1, _DRAFT_TIMES)
        factor += counted * max(_LEARN, 1 / max(1, evidence + _KNOWN * self._known))
        self._factors[i] = factor = min(factor, self._limit(i)) if i else factor
        # A size with few passes may be what is wrong, rather than the level.
        if evidence >= _TRIES or self._sizes_tried == 1:
            self._level *= math.exp(_FOLLOW * counted)
        if tried + 1 == _TRIES:
            self._climb(i)
        self._turn += 1
        self._due[i] = self._turn + self._patience[i]
        if self._forget() or not tried or abs(factor - self._fitted[i]) > _SAME:
            self._fit()

    def _climb(self, i: int) -> None:
        """Allow one size more than the largest that was tried, now that size i was."""
        if not self._known:
            above = np.searchsorted(self.sizes, self._ends[i], side="right")
            self._maximum = max(self._maximum, int(self.sizes[min(above, len(self.sizes) - 1)]))

    def _below(self, i: int) -> int | None:
        """Return the largest size below size i that was tried."""
        below = np.flatnonzero(self._tried[:i])
        return int(below[-1]) if below.size else None

    def _expect_factor(self, i: int, rows: int) -> float:
        """Return the factor of a size before its first pass: what the curve says."""
        return 0.0 if self._below(i) is None else math.log(float(self._curve[rows] / self._base[rows]))

    def _limit(self, i: int) -> float:
        """Return the largest factor of a size: its rows computed one by one."""
        rows = float(self._rows[i])
        return float(self._factors[0]) + math.log((rows + 1) / float(self._base[round(rows)])) + 2 * _SAME

    def _forget(self) -> bool:
        """Let sizes that were not tried for long come half-way down to the size below; return whether any did.

        Numbers of rows between the sizes are left as they are: they need not be tried to climb.
        """
        forgotten = False
        for i in self._climbed:
            if self._turn < self._due[i] or not self._tried[i]:
                continue
            self._patience[i] *= 2
            self._due[i] = self._turn + self._patience[i]
            self._last[i] = 0.0
            if (below := self._below(i)) is not None:
                excess = self._factors[i] - self._factors[below] - (0.0 if self._known else math.log(_UNTRIED))
                if excess > 0:
                    self._factors[i] -= excess / 2
                    self._evidence[i] = 0  # the next passes say at once what it costs
                    forgotten = True
        return forgotten

    def _fit(self) -> None:
        """Compute the curve."""
        self._fitted = self._factors.copy()
        self._curve = _curve(self._factors, self._rows, self._tried, self._ends, self._base, self._known)

    @property
    def usual_drafting(self) -> float:
        """What drafting takes in a round, in units of `curve`: the lower quartile, which stalls do not change."""
        return _lower_quartile(self._draft_times) if len(self._draft_times) > 1 else 0.0

    @property
    def level_start(self) -> float:
        """What drafting by levels takes beside its levels, and more than a draft without them, in units of `curve`."""
        rounds, levels, _, times, _ = self._line
        if not rounds:
            return 0.0
        free = _lower_quartile(self._free_times) if self._free_times else 0.0
        return max(0.0, (times - self.further_level * levels) / rounds - free)

    def observe_drafting(self, nodes: float, seconds: float, *, even: bool = False, usual: bool = True) -> float:
        """Add the seconds of drafting and learning in a round of so many nodes; return them in units of `curve`.

        What they grow by per node becomes `drafting`, by a straight line through the rounds of late; `further_level` is
        the same, but nothing as long as sizes differ too little to tell, so that deeper drafts are tried. A round that
        took far longer than usual for its nodes does not predict the next and counts as a slow usual one; what is usual
        is not known before the second.

        Args:
            nodes: drafted; or levels, where drafting takes a pass of a model for each.
            seconds: of drafting.
            even: whether drafts take the same time for every node. Where sizes differ too little to tell, that is what
                `drafting` tends to; else it tends to none, since searches take most of their time before the first.
            usual: whether this round's time says what drafting takes.
        """
        time, rates = seconds / self._level, self._draft_rates[nodes > 0]
        if even and not nodes:
            self._free_times.append(time)
        if not usual and len(rates) > 1:
            return min(time, _BOOKED * _lower_quartile(rates) * (nodes + _START))
        self._draft_times.append(time)
        rates.append(time / (nodes + _START))
        if len(rates) == 1:
            return 0.0
        rate = _lower_quartile(rates) * (nodes + _START)
        if even and not nodes:
            return min(time, _BOOKED * rate)
        time = min(time, _STALL * rate)
        added = (1.0, nodes, nodes * nodes, time, nodes * time)
        self._line = rounds, x, xx, y, xy = [_DECAY * old + new for old, new in zip(self._line, added, strict=True)]
        doubt = (rounds * (_EVEN_SPREAD if even else _SPREAD)) ** 2 / 16
        each = doubt * y / x if even and x else 0.0
        covariance, variance = rounds * xy - x * y, rounds * xx - x * x
        self.drafting = max(0.0, (covariance + each) / (variance + doubt))
        self.further_level = max(0.0, covariance / (variance + (rounds * _LEVEL_SPREAD) ** 2 / 16))
        return min(time, _BOOKED * rate)


@njit(cache=True)
def _curve(factors, mean_rows, tried, ends, base, known):  # type: ignore[no-untyped-def]
    """Return the cost of passes over 0, 1, ... rows, by sizes that were tried."""
    sizes, rows = np.flatnonzero(tried), np.arange(len(base))
    at, costs = mean_rows[sizes], np.exp(factors[sizes])
    if known:
        return np.interp(rows, at, costs) * base
    fit = rising_fit(costs, np.minimum(tried[sizes], _DRAFT_TIMES))
    curve = np.interp(rows, at, fit)
    drafts = min(1, len(at) - 1) if at[0] == 0 else 0  # the first size with nodes: a first one says nothing of others
    each = (fit[-1] - fit[drafts]) / max(1.0, at[-1] - at[drafts])
    for row in range(ends[sizes[-1]] + 1, len(base)):
        curve[row] = _UNTRIED * fit[-1] + _STEEP * each * (row - at[-1])
    return curve


def measured_sizes(maximum: int) -> list[int]:
    """Return the draft rows of the passes that have a cost of their own, up to `maximum`."""
    return [size for size in range(maximum) if size < _SINGLE or size in SIZES] + [maximum]


def _lower_quartile(values: deque[float]) -> float:
    return sorted(values)[(len(values) - 1) // 4]
