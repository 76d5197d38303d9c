"""What a round costs by the nodes of its draft, kept true by every round.

Costs are relative: in passes without a draft, as long as those take just now. A machine that others use as well is
half as fast for minutes, and then a size tried in a bad minute would look dear for ever; so each pass is compared with
how long passes took around it (the level, which follows within a few rounds), and only the ratio is remembered.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from speculant.sizing.step_cost import StepCost

Float64 = npt.NDArray[np.float64]

SIZES = (0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_SAMPLES, _TRIES = 15, 2
_KNOWN = [1.0, 1.0]  # a measured curve counts like so many samples of each size
_UNTRIED = 1.05  # what a size that was never tried is supposed to cost, in passes of the one below
_SWIFT, _JUMP = 0.3, 2.0  # how far the level follows a pass, and the most that one pass may seem to say
_AGE = 64  # rounds after which the smallest size forgets its slowest sample, so that bad luck is tried again
_SAME = 0.005  # a smaller change of a size's cost is no reason to draw the curve anew
_STALL = 4.0  # times the lower quartile: drafting that takes longer was held up
_LATE = 0.98
_SPREAD = 16.0  # nodes: sizes of drafts must differ by about as much before the time of drafting is blamed on them


class RoundCost:
    """Seconds of a round by nodes."""

    def __init__(self, *, most: int, known: StepCost | None = None) -> None:
        """Begin with a measured curve, or with none.

        Args:
            most: the most nodes of a draft.
            known: seconds of a pass on this model and device; None to climb from size to size as long as it pays.
        """
        self.sizes = np.array([size for size in SIZES if size < most] + [most])
        self._known = known is not None
        plain = 1.0 if known is None else float(known.of(np.zeros(1))[0])
        self._base = np.ones(most + 1) if known is None else known.of(np.arange(most + 1)) / plain
        self._met: list[deque[tuple[int, float]]] = [deque(maxlen=_SAMPLES) for _ in self.sizes]
        self._middle: dict[int, tuple[float, float]] = {}  # by size: mean nodes and median ratio of what was met
        self._level, self._rounds = plain, 0
        self._curve = self._base
        self._drafts: deque[float] = deque(maxlen=_SAMPLES)  # times of drafting
        self._line = np.zeros(5)  # of late: rounds, nodes, nodes squared, time of drafting, time by nodes
        self.drafting = 0.0

    @property
    def most(self) -> int:
        """The most nodes that may be spent now: where nothing is known, one size more than what has been tried."""
        if self._known:
            return int(self.sizes[-1])
        tried = [i for i, met in enumerate(self._met) if len(met) >= _TRIES]
        return int(self.sizes[min(tried[-1] + 1, len(self.sizes) - 1)] if tried else self.sizes[0])

    @property
    def level(self) -> float:
        """Seconds that stand for one unit of `curve` now."""
        return self._level

    @property
    def curve(self) -> Float64:
        """Float64[most + 1], the cost of passes over 0, 1, ... nodes; 0 nodes cost about 1."""
        return self._curve

    def of(self, nodes: npt.NDArray[np.integer]) -> Float64:
        """Return the seconds Float64[P] that passes over Int[P] nodes take now."""
        return np.asarray(self._level * self._curve[np.minimum(nodes, len(self._curve) - 1)], np.float64)

    def learn(self, nodes: int, seconds: float) -> None:
        """Take in the seconds of a pass."""
        nodes = min(nodes, len(self._base) - 1)
        if not self._rounds:
            self._level = seconds / float(self._curve[nodes])
        i = min(int(np.searchsorted(self.sizes, nodes)), len(self.sizes) - 1)
        self._met[i].append((nodes, seconds / (self._level * float(self._base[nodes]))))
        changed = self._weigh(i)
        for k, met in enumerate(self._met):
            if len(met) > 1 and self._rounds % (_AGE * (k + 1)) == _AGE - 1:
                met.remove(max(met, key=lambda sample: sample[1]))
                changed |= self._weigh(k)
        if changed:
            self._curve = self._factors() * self._base
        if len(self._met[i]) > _TRIES or len(self._middle) == 1:  # else it is the size's cost that is not known yet
            self._follow(seconds / (self._level * float(self._curve[nodes])))
        self._rounds += 1

    def _weigh(self, i: int) -> bool:
        """Find anew what passes of a size cost; say whether that changes the curve.

        Slow passes are common (code is loaded, another program runs), fast ones are not. So a size that was met once is
        still supposed to cost little more than the one below, and of two samples in the middle the lower counts.
        """
        met = self._met[i]
        below = [self._middle[k][1] for k in sorted(self._middle) if k < i]
        supposed = _KNOWN if self._known else [_UNTRIED * below[-1]] if below else []
        ratios = sorted([ratio for _, ratio in met] + supposed)
        middle = ratios[(len(ratios) - 1) // 2]
        if i in self._middle and abs(middle - self._middle[i][1]) < _SAME * middle:
            return False
        self._middle[i] = sum(size for size, _ in met) / len(met), middle
        return True

    @property
    def usual_drafting(self) -> float:
        """What drafting takes in a round, in units of `curve`: the lower quartile, which stalls leave alone."""
        return sorted(self._drafts)[(len(self._drafts) - 1) // 4] if len(self._drafts) > 1 else 0.0

    def learn_drafting(self, nodes: int, seconds: float) -> float:
        """Take in the seconds of drafting and learning in a round of so many nodes; return them in units of `curve`.

        What they grow by per node becomes `drafting`: a straight line of late. A round that took far longer than usual
        (code was compiled, another program had the processor) says nothing of the next and counts as a slow usual one;
        what is usual is not known before the second.
        """
        self._drafts.append(seconds / self._level)
        if len(self._drafts) == 1:
            return 0.0
        time = min(self._drafts[-1], _STALL * self.usual_drafting)
        self._line = _LATE * self._line + np.array([1.0, nodes, nodes * nodes, time, nodes * time])
        rounds, x, xx, y, xy = self._line.tolist()
        self.drafting = max(0.0, (rounds * xy - x * y) / (rounds * xx - x * x + (rounds * _SPREAD) ** 2 / 16))
        return time

    def _factors(self) -> Float64:
        """Return Float64[most + 1], what passes turned out to cost over `_base`."""
        met = sorted(self._middle)
        at, middle = [self._middle[k][0] for k in met], [self._middle[k][1] for k in met]
        if self._known:
            return np.interp(np.arange(len(self._base)), at, middle)
        factors = np.interp(np.arange(len(self._base)), at, rising(middle, [len(self._met[k]) for k in met]))
        factors[int(self.sizes[met[-1]]) + 1 :] *= _UNTRIED
        return factors

    def _follow(self, change: float) -> None:
        """Move the level towards a pass that took `change` times what was expected."""
        if self._rounds >= 1 / _SWIFT:
            change = min(max(change, 1 / _JUMP), _JUMP)
        self._level *= change ** max(_SWIFT, 1 / (self._rounds + 2))


def rising(values: list[float], counts: list[int]) -> list[float]:
    """Return the nearest values that never fall, since more nodes never cost less: what looks so is noise.

    Pools neighbours that are out of order (Ayer et al. 1955), by how often each was met.
    """
    pools: list[tuple[float, int, int]] = []  # mean, how often met, how many values
    for value, count in zip(values, counts, strict=True):
        pool = value, count, 1
        while pools and pools[-1][0] > pool[0]:
            mean, met, width = pools.pop()
            pool = (mean * met + pool[0] * pool[1]) / (met + pool[1]), met + pool[1], width + pool[2]
        pools.append(pool)
    return [mean for mean, _, width in pools for _ in range(width)]
