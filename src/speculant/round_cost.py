"""What a round costs by the nodes of its draft, kept true by every round.

Costs are relative: in passes without a draft, as long as those take just now. A machine that others use as well is
half as fast for minutes, and then a size tried in a bad minute would look dear for ever; so each pass is compared with
how long passes took around it (the level, which follows within a few rounds), and only the ratio is remembered.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from speculant.step_cost import StepCost

Float64 = npt.NDArray[np.float64]

SIZES = (0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_SAMPLES, _TRIES = 15, 2
_KNOWN = [1.0, 1.0]  # a measured curve counts like so many samples of each size
_UNTRIED = 1.05  # what a size that was never tried is supposed to cost, in passes of the one below
_SWIFT, _JUMP = 0.3, 2.0  # how far the level follows a pass, and the most that one pass may seem to say
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
        """The most nodes that may be spent now: where nothing is known, one size more than what has been tried.

        Tried are also the sizes below the smallest that was met: passes over several sequences are never smaller.
        """
        if self._known:
            return int(self.sizes[-1])
        lowest = min(self._middle, default=0)
        untried = (int(self.sizes[i]) for i in range(lowest, len(self.sizes)) if len(self._met[i]) < _TRIES)
        return next(untried, int(self.sizes[-1]))

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
        met = self._met[i]
        met.append((nodes, seconds / (self._level * float(self._base[nodes]))))
        ratios = sorted([ratio for _, ratio in met] + (_KNOWN if self._known else []))
        middle = (ratios[len(ratios) // 2] + ratios[(len(ratios) - 1) // 2]) / 2
        nodes_met = sum(size for size, _ in met) / len(met)
        if i not in self._middle or abs(middle - self._middle[i][1]) > _SAME * middle:
            self._middle[i] = nodes_met, middle
            self._curve = self._factors() * self._base
        self._follow(seconds / (self._level * float(self._curve[nodes])))

    def learn_drafting(self, nodes: int, seconds: float) -> float:
        """Take in the seconds of drafting and learning in a round of so many nodes; return them in units of `curve`.

        What they grow by per node becomes `drafting`: a straight line of late. A round that took far longer than usual
        (code was compiled, another program had the processor) says nothing of the next and counts as a slow usual one;
        what is usual is not known before the second.
        """
        self._drafts.append(seconds / self._level)
        if len(self._drafts) == 1:
            return 0.0
        time = min(self._drafts[-1], _STALL * sorted(self._drafts)[(len(self._drafts) - 1) // 4])
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
        self._rounds += 1
        if self._rounds > 1 / _SWIFT:
            change = min(max(change, 1 / _JUMP), _JUMP)
        self._level *= change ** max(_SWIFT, 1 / (self._rounds + 1))


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
