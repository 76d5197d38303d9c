"""Latency model: the cost of a round as a function of the draft rows of its pass, updated every round.

Costs are relative to a pass without a draft at the machine's current speed. A shared machine may be half as fast for
minutes, and a size tried in such a period would look expensive forever. So the seconds of a pass are modelled as
level x cost: the level is the machine's current speed and adapts within a few rounds; the cost belongs to the size and
changes slowly. Each pass updates both, by fixed shares of the same logarithmic error, like a Kalman filter with a fast
and a slow state. If only one size is run, speed and cost cannot be told apart; sharing the error keeps them from
drifting apart, as two separate estimators would.

A stall (code being loaded, another program on the processor) makes a pass slow, never fast. So a slow pass counts only
if the previous pass of its size was slow too, and then only as much as the faster of the two. A pass over n rows never
costs more than n plain passes, which would compute the same. And a size that has not been tried for a while loses half
of its excess cost over the next smaller size, so that it is tried again.

Kernels compute rows in blocks: llama.cpp's take 2.9 plain passes for 4 rows, 4.2 for 5, 4.9 for 7 and 4.5 for 8. So the
sizes tried in ascending order are whole blocks, while up to 16 rows every number has a cost of its own. The curve is
the closest non-decreasing fit: rows that cost more than a larger, whole block get about the cost of that block, which
is all that choosing a size requires, and errors of single sizes do not add up.

Trying sizes in ascending order takes two drafts of each. Where drafting itself takes a pass or more, small drafts lose
for certain, so the sizes that are too small to pay are skipped.
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

SIZES = (0, 1, 3, 7, 11, 15, 23, 31, 47, 63, 95, 127, 191, 255)  # with the root's row: 1, 2, and blocks of 4 and more
_SINGLE = 16  # draft rows up to which each number of rows has a cost of its own
_TRIES = 2  # passes of a size before the next larger one may be tried
_WORTH, _SKIPPED = 4, 15  # nodes that a draft needs to pay, per plain pass that it takes; most nodes not tried in order
_KNOWN = 2  # weight of a measured curve, in passes of each size
_UNTRIED = 1.05  # assumed cost of a size that was never tried, relative to the largest size tried
_STEEP = 0.5  # assumed cost of each further row, relative to a row's average cost among the sizes tried
_FOLLOW = 0.3  # share of a pass's error that moves the level
_LEARN = 0.06  # share that moves the cost of its size, once that is known
_JUMP = math.log(2)  # errors are clipped to this
_FORGET = 64  # rounds without a try after which the cost of a size is lowered; doubles each time
_SAME = 0.004  # smaller changes of a size's cost do not recompute the curve
_DRAFT_TIMES = 15  # recent drafting times that are kept
_STALL = 4.0  # times the lower quartile: drafting that takes longer was interrupted
_BOOKED = 1.5  # times the lower quartile: maximum drafting time charged to a round, since stalls of passes do not count
_START = 8  # assumed time of a draft before its first node, in nodes, for recognising stalls
_DECAY = 0.98
_SPREAD = 16.0  # nodes by which draft sizes must roughly differ before drafting time is attributed to nodes
_EVEN_SPREAD = 2.0  # the same if every node, or level, takes a pass of a model
_LEVEL_SPREAD = 1.0  # levels: the same for the time of one more level


class LatencyModel:
    """Predicts the seconds of a round from the number of draft rows of its pass."""

    def __init__(self, *, maximum: int, known: StepCost | None = None) -> None:
        """Begin with a measured curve, or with none.

        Args:
            maximum: maximum number of draft rows of a pass.
            known: measured seconds of a pass on this model and device; None to try larger sizes as long as they pay.
        """
        self.sizes = np.array([size for size in SIZES if size < maximum] + [maximum])
        sizes = measured_sizes(maximum)
        self._ends = np.array(sizes)  # maximum rows of each size that has a cost
        self._bucket = np.searchsorted(sizes, np.arange(maximum + 1)).tolist()  # rows -> index of their size
        self._climbed = np.flatnonzero(np.isin(sizes, self.sizes)).tolist()
        self._known = known is not None
        plain = 1.0 if known is None else float(known.of(np.zeros(1))[0])
        self._base = np.ones(maximum + 1) if known is None else known.of(np.arange(maximum + 1)) / plain
        # Lists, since single numbers of arrays are slow to read and write.
        self._factors = [0.0] * len(sizes)  # log cost of each size relative to `_base`
        self._rows = [0.0] * len(sizes)  # mean rows of the passes of each size
        self._tried = [0] * len(sizes)
        self._sizes_tried = 0
        self._evidence = [0] * len(sizes)  # passes of each size since its cost was forgotten
        self._last = [0.0] * len(sizes)  # log error of the last pass of each size
        self._turn, self._patience = 0, [_FORGET] * len(sizes)
        self._due = [_FORGET] * len(sizes)  # turn in which each size is forgotten, unless it is tried before
        self._first_due = _FORGET  # a turn before which none is due
        self._fitted = self._factors.copy()  # the factors that `_curve` was computed from
        self._level = plain
        self._curve = self._base
        self._maximum = int(self.sizes[-1 if known is not None else 0])
        self._draft_times: deque[float] = deque(maxlen=_DRAFT_TIMES)
        # Drafting times divided by nodes + `_START`, separately for rounds without and with nodes (or levels).
        self._draft_rates: tuple[deque[float], deque[float]] = deque(maxlen=_DRAFT_TIMES), deque(maxlen=_DRAFT_TIMES)
        self._line = [0.0] * 5  # decayed sums: rounds, nodes, nodes squared, drafting time, nodes times drafting time
        self._free_times: deque[float] = deque(maxlen=_DRAFT_TIMES)  # times of drafts without levels that take time
        self.drafting = self.further_level = 0.0

    @property
    def maximum(self) -> int:
        """Maximum draft rows for now: without a measured curve, the next size above those that have been tried."""
        return self._maximum

    @property
    def level(self) -> float:
        """Current length of one unit of `curve`, in seconds."""
        return self._level

    @property
    def curve(self) -> Float64:
        """Float64[maximum + 1], the cost of passes over 0, 1, ... draft rows; 0 rows cost about 1."""
        return self._curve

    def seconds(self, rows: npt.NDArray[np.integer]) -> Float64:
        """Return the seconds Float64[P] that passes over `rows` Int[P] draft rows currently take."""
        return np.asarray(self._level * self._curve[np.minimum(rows, len(self._curve) - 1)], np.float64)

    def observe(self, rows: int, seconds: float) -> None:
        """Add the seconds of a pass over `rows` draft rows."""
        rows = min(rows, len(self._base) - 1)
        i, base = self._bucket[rows], float(self._base[rows])
        if not self._sizes_tried:
            self._level = seconds / base
        tried, evidence, factor = self._tried[i], self._evidence[i], self._factors[i]
        if not tried:
            self._sizes_tried += 1
            factor = self._expect_factor(i, rows)
        error = math.log(seconds / (self._level * base)) - factor
        counted = error if error < 0 else min(error, max(0.0, self._last[i]))
        counted = min(max(counted, -_JUMP), _JUMP)
        self._last[i] = error
        self._tried[i], self._evidence[i] = tried + 1, evidence + 1
        self._rows[i] += (rows - self._rows[i]) / min(tried + 1, _DRAFT_TIMES)
        factor += counted * max(_LEARN, 1 / max(1, evidence + _KNOWN * self._known))
        self._factors[i] = factor = min(factor, self._limit(i)) if i else factor
        # If a size has few passes, the error may be in its cost rather than in the level.
        if evidence >= _TRIES or self._sizes_tried == 1:
            self._level *= math.exp(_FOLLOW * counted)
        if tried + 1 == _TRIES:
            self._climb(i)
        self._turn += 1
        self._due[i] = self._turn + self._patience[i]
        self._first_due = min(self._first_due, self._due[i])
        if self._forget() or not tried or abs(factor - self._fitted[i]) > _SAME:
            self._fit()

    def _climb(self, i: int) -> None:
        """Allow the next size above size i, which has now been tried often enough."""
        if not self._known:
            above = np.searchsorted(self.sizes, self._ends[i], side="right")
            self._maximum = max(self._maximum, int(self.sizes[min(above, len(self.sizes) - 1)]))

    def _skip_sizes(self) -> None:
        """Allow the smallest size that may gain what drafting takes."""
        if self._maximum < _SKIPPED:
            place = int(np.searchsorted(self.sizes, min(_SKIPPED, _WORTH * self.usual_drafting)))
            self._maximum = max(self._maximum, int(self.sizes[min(place, len(self.sizes) - 1)]))

    def _below(self, i: int) -> int | None:
        """Return the index of the largest size below size i that was tried."""
        return next((below for below in range(i - 1, -1, -1) if self._tried[below]), None)

    def _expect_factor(self, i: int, rows: int) -> float:
        """Return the factor of a size before its first pass, as predicted by the curve."""
        return 0.0 if self._below(i) is None else math.log(float(self._curve[rows] / self._base[rows]))

    def _limit(self, i: int) -> float:
        """Return the maximum factor of a size: the cost of computing its rows one by one."""
        rows = self._rows[i]
        return self._factors[0] + math.log((rows + 1) / float(self._base[round(rows)])) + 2 * _SAME

    def _forget(self) -> bool:
        """Halve the excess cost over the next smaller size of sizes not tried for long; return whether any changed.

        Row counts between the sizes of `SIZES` are left alone: climbing does not require trying them.
        """
        if self._turn < self._first_due:
            return False
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
                    self._evidence[i] = 0  # so that the next passes set its cost at once
                    forgotten = True
        self._first_due = min([self._due[i] for i in self._climbed if self._tried[i]], default=self._turn)
        return forgotten

    def _fit(self) -> None:
        """Recompute the curve from the current factors."""
        self._fitted = self._factors.copy()
        arrays = np.array(self._factors), np.array(self._rows), np.array(self._tried, np.int64)
        self._curve = _curve(*arrays, self._ends, self._base, self._known)

    @property
    def usual_drafting(self) -> float:
        """Usual drafting time of a sequence, in units of `curve`: the lower quartile, which is robust to stalls."""
        return _lower_quartile(self._draft_times) if len(self._draft_times) > 1 else 0.0

    @property
    def level_start(self) -> float:
        """Fixed time of drafting by levels, in excess of a draft without levels, in units of `curve`."""
        rounds, levels, _, times, _ = self._line
        if not rounds:
            return 0.0
        free = _lower_quartile(self._free_times) if self._free_times else 0.0
        return max(0.0, (times - self.further_level * levels) / rounds - free)

    def observe_drafting(self, nodes: float, seconds: float, *, even: bool = False, usual: bool = True) -> float:
        """Add the drafting and learning time of a sequence in a round; return the time charged, in units of `curve`.

        `drafting`, the time per node, is the slope of a regression line through recent rounds. `further_level` is the
        same slope, except that it stays near 0 while sizes differ too little to estimate it, so that deeper drafts are
        tried. A round that took far longer than usual for its nodes does not predict the next one and counts as a
        moderately slow one; nothing counts as usual before the second round.

        Args:
            nodes: number of nodes drafted, or of levels if drafting takes a model's pass per level.
            seconds: drafting time.
            even: whether every node takes the same time. While sizes differ too little to estimate a slope, `drafting`
                tends to the mean time per node; if not `even`, to 0, since a search takes most of its time before the
                first node.
            usual: whether this round's time is representative.
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
        self._skip_sizes()
        self._line = rounds, x, xx, y, xy = [_DECAY * old + new for old, new in zip(self._line, added, strict=True)]
        doubt = (rounds * (_EVEN_SPREAD if even else _SPREAD)) ** 2 / 16
        each = doubt * y / x if even and x else 0.0
        covariance, variance = rounds * xy - x * y, rounds * xx - x * x
        self.drafting = max(0.0, (covariance + each) / (variance + doubt))
        self.further_level = max(0.0, covariance / (variance + (rounds * _LEVEL_SPREAD) ** 2 / 16))
        return min(time, _BOOKED * rate)


@njit(cache=True)
def _interpolate(length, at, values):  # type: ignore[no-untyped-def]
    """Return `np.interp` of 0, 1, ..., length - 1, which takes seconds to compile, for rising `at`."""
    curve, left = np.empty(length), 0
    for row in range(length):
        while left < len(at) - 1 and at[left + 1] <= row:
            left += 1
        curve[row] = values[left]
        if left < len(at) - 1 and row > at[left]:
            curve[row] += (values[left + 1] - values[left]) / (at[left + 1] - at[left]) * (row - at[left])
    return curve


@njit(cache=True)
def _curve(factors, mean_rows, tried, ends, base, known):  # type: ignore[no-untyped-def]
    """Return the cost of passes over 0, 1, ... draft rows, fitted to the sizes that were tried."""
    sizes = np.flatnonzero(tried)
    at, costs = mean_rows[sizes], np.exp(factors[sizes])
    if known:
        return _interpolate(len(base), at, costs) * base
    fit = rising_fit(costs, np.minimum(tried[sizes], _DRAFT_TIMES))
    curve = _interpolate(len(base), at, fit)
    drafts = min(1, len(at) - 1) if at[0] == 0 else 0  # start at the first size with nodes: the step to it is atypical
    each = (fit[-1] - fit[drafts]) / max(1.0, at[-1] - at[drafts])
    for row in range(ends[sizes[-1]] + 1, len(base)):
        curve[row] = _UNTRIED * fit[-1] + _STEEP * each * (row - at[-1])
    return curve


def measured_sizes(maximum: int) -> list[int]:
    """Return the numbers of draft rows, up to `maximum`, that have a cost of their own."""
    return [size for size in range(maximum) if size < _SINGLE or size in SIZES] + [maximum]


def _lower_quartile(values: deque[float]) -> float:
    return sorted(values)[(len(values) - 1) // 4]
