"""Latency model: what a round costs by the draft rows of its pass, corrected by every round.

Costs are relative to a pass without a draft at the machine's speed of the moment. A machine that others use as well is
half as fast for minutes, and a size tried in such a minute would look expensive for ever. So each pass is compared with
the level, how long passes take just now, which follows within a few rounds, and only the ratio is kept.

A stall (code is loaded, another program has the processor) makes a pass slow and never fast. So of the samples of a
size the lower quartile counts, no sample counts for more than as many plain passes as the pass has rows, which would
compute the same, and a size that has not been tried for a while forgets its slowest sample, so that it is tried again.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from speculant.sizing.isotonic import rising_fit
from speculant.sizing.step_cost import StepCost

Float64 = npt.NDArray[np.float64]

SIZES = (0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_SAMPLES, _TRIES = 15, 2
_KNOWN = [1.0, 1.0]  # a measured curve counts like so many samples of each size
_UNTRIED = 1.05  # assumed cost of a size that was never tried, in passes of the size below
_FOLLOW, _JUMP = 0.3, 2.0  # how far the level follows a pass, and the largest change that one pass may cause
_FORGET = 64  # rounds without a try after which a size forgets its slowest sample
_SAME = 0.005  # a smaller change of a size's cost is no reason to compute the curve again
_STALL = 4.0  # times the lower quartile: drafting that takes longer was interrupted
_DECAY = 0.98
_SPREAD = 16.0  # nodes: sizes of drafts must differ by about as much before drafting time is attributed to them


class LatencyModel:
    """Seconds of a round by the rows of its pass beyond the first."""

    def __init__(self, *, most: int, known: StepCost | None = None) -> None:
        """Begin with a measured curve, or with none.

        Args:
            most: the most draft rows of a pass.
            known: seconds of a pass on this model and device; None to climb from size to size as long as it pays.
        """
        self.sizes = np.array([size for size in SIZES if size < most] + [most])
        self._known = known is not None
        plain = 1.0 if known is None else float(known.of(np.zeros(1))[0])
        self._base = np.ones(most + 1) if known is None else known.of(np.arange(most + 1)) / plain
        self._samples: list[deque[tuple[int, float]]] = [deque(maxlen=_SAMPLES) for _ in self.sizes]
        self._untried = [0] * len(self.sizes)  # rounds since each size was tried
        self._costs: dict[int, tuple[float, float]] = {}  # by size: mean rows and lower-quartile ratio of the samples
        self._level, self._rounds = plain, 0
        self._curve = self._base
        self._draft_times: deque[float] = deque(maxlen=_SAMPLES)
        self._line = np.zeros(5)  # decayed: rounds, nodes, nodes squared, time of drafting, time by nodes
        self.drafting = 0.0

    @property
    def most(self) -> int:
        """The most draft rows that may be spent now: without a measured curve, one size more than has been tried."""
        if self._known:
            return int(self.sizes[-1])
        tried = [i for i, samples in enumerate(self._samples) if len(samples) >= _TRIES]
        return int(self.sizes[min(tried[-1] + 1, len(self.sizes) - 1)] if tried else self.sizes[0])

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
        if not self._rounds:
            self._level = seconds / float(self._curve[rows])
        i = min(int(np.searchsorted(self.sizes, rows)), len(self.sizes) - 1)
        ratio = min(seconds / self._level, rows + 1.0)
        self._samples[i].append((rows, ratio / float(self._base[rows])))
        if self._estimate(i) | self._forget(i):
            self._curve = self._factors() * self._base
        # A size with few samples may be what is wrong, rather than the level.
        if len(self._samples[i]) > _TRIES or len(self._costs) == 1:
            self._follow(seconds / (self._level * float(self._curve[rows])))
        self._rounds += 1

    def _estimate(self, i: int) -> bool:
        """Estimate again what passes of a size cost; return whether that changes the curve.

        A size with one sample is still assumed to cost little more than the size below.
        """
        samples = self._samples[i]
        below = [self._costs[k][1] for k in sorted(self._costs) if k < i]
        assumed = _KNOWN if self._known else [_UNTRIED * below[-1]] if below else []
        ratios = sorted([ratio for _, ratio in samples] + assumed)
        cost = ratios[(len(ratios) - 1) // 4 if len(ratios) > 3 else (len(ratios) - 1) // 2]
        if i in self._costs and abs(cost - self._costs[i][1]) < _SAME * cost:
            return False
        self._costs[i] = sum(rows for rows, _ in samples) / len(samples), cost
        return True

    def _forget(self, tried: int) -> bool:
        """Let sizes that were not tried for long forget their slowest sample; return whether that changes the curve."""
        changed = False
        for k, samples in enumerate(self._samples):
            self._untried[k] = 0 if k == tried else self._untried[k] + 1
            if len(samples) > 1 and self._untried[k] >= _FORGET:
                self._untried[k] = 0
                samples.remove(max(samples, key=lambda sample: sample[1]))
                changed |= self._estimate(k)
        return changed

    @property
    def usual_drafting(self) -> float:
        """What drafting takes in a round, in units of `curve`: the lower quartile, which stalls do not change."""
        times = sorted(self._draft_times)
        return times[(len(times) - 1) // 4] if len(times) > 1 else 0.0

    def observe_drafting(self, nodes: int, seconds: float) -> float:
        """Add the seconds of drafting and learning in a round of so many nodes; return them in units of `curve`.

        What they grow by per node becomes `drafting`, by a straight line through the rounds of late. A round that took
        far longer than usual does not predict the next and counts as a slow usual one; what is usual is not known
        before the second.
        """
        self._draft_times.append(seconds / self._level)
        if len(self._draft_times) == 1:
            return 0.0
        time = min(self._draft_times[-1], _STALL * self.usual_drafting)
        self._line = _DECAY * self._line + np.array([1.0, nodes, nodes * nodes, time, nodes * time])
        rounds, x, xx, y, xy = self._line.tolist()
        self.drafting = max(0.0, (rounds * xy - x * y) / (rounds * xx - x * x + (rounds * _SPREAD) ** 2 / 16))
        return time

    def _factors(self) -> Float64:
        """Return Float64[most + 1], what passes cost over `_base`."""
        sizes = sorted(self._costs)
        at, costs = [self._costs[k][0] for k in sizes], [self._costs[k][1] for k in sizes]
        if self._known:
            return np.interp(np.arange(len(self._base)), at, costs)
        fit = rising_fit(costs, [len(self._samples[k]) for k in sizes])
        factors = np.interp(np.arange(len(self._base)), at, fit)
        factors[int(self.sizes[sizes[-1]]) + 1 :] *= _UNTRIED
        return factors

    def _follow(self, change: float) -> None:
        """Move the level towards a pass that took `change` times what was expected."""
        if self._rounds >= 1 / _FOLLOW:
            change = min(max(change, 1 / _JUMP), _JUMP)
        self._level *= change ** max(_FOLLOW, 1 / (self._rounds + 2))
