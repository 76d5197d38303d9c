"""How many nodes a round should spend: as many as pay, none where nothing does.

A node is worth the probability that it is accepted, a pass over more nodes costs more time, and time is worth the
tokens that could be had in it elsewhere. So with v_i the value of node i, c(n) the seconds of a round with n nodes and
r the tokens per second of late, the best size is the n that maximises

    1 + v_1 + ... + v_n - r c(n)

which is Dinkelbach's way (1967) to maximise a ratio, here tokens over time, taken over all rounds rather than one
(Sequoia, Chen et al. 2024, arXiv 2402.12374, and TurboSpec, Liu et al. 2024, arXiv 2406.14066, maximise it per round).
Drafters overrate their nodes, so v_i is what nodes of such a weight have been worth lately in this request. Costs are
measured in every round; a curve that `speculant tune` stored only spares the first rounds from trying sizes.

Sampled nodes may not be dropped by value. For them the size is set before the draft exists, from late values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from speculant.step_cost import StepCost
from speculant.tree import DraftTree

Float64 = npt.NDArray[np.float64]

SIZES = (0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_EDGES = (0.005, 0.01, 0.02, 0.04, 0.07, 0.12, 0.2, 0.3, 0.42, 0.55, 0.7, 0.82, 0.92, 0.97)
_DOUBT = 4.0  # nodes' worth of acceptances by which the drafter's own word counts in each band of weights
_FORGET = 0.99  # per round
_LATE = 0.97
_SAMPLES, _TRIES = 9, 2
_UNTRIED = 1.05  # what a size that was never tried is supposed to cost, in passes of the one below
_LONGEST_PAUSE = 8
_HOPELESS = 0.05  # a first node worth less than that says that the drafter knows nothing here


class Sizing(Protocol):
    """What the round loop asks about sizes, one per request."""

    def budget(self) -> int:
        """Return the most nodes to ask the drafter for; 0 means that it need not draft."""

    def cut(self, tree: DraftTree) -> DraftTree:
        """Return the part of the draft that is worth its time."""

    def learn(self, tree: DraftTree, path: Sequence[int], tokens: int, *, target: float, draft: float) -> None:
        """Take in what a round with this draft gave, and its seconds: of the target's pass and of drafting."""

    def reason(self) -> str:
        """Return one sentence on why sizes were what they were; empty if there is nothing to say."""


class FixedSize:
    """The same most nodes in every round."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes

    def budget(self) -> int:
        return self._nodes

    def cut(self, tree: DraftTree) -> DraftTree:
        return tree

    def learn(self, tree: DraftTree, path: Sequence[int], tokens: int, *, target: float, draft: float) -> None:
        pass

    def reason(self) -> str:
        return ""


class RoundCost:
    """Seconds of a target pass by nodes, kept true by every round."""

    def __init__(self, *, most: int, known: StepCost | None = None) -> None:
        """Begin with a measured curve, or with none.

        Args:
            most: the most nodes of a draft.
            known: seconds of a pass on this model and device; None to climb from size to size as long as it pays.
        """
        self.sizes = np.array([size for size in SIZES if size < most] + [most])
        self._known = known
        self._ratios: list[deque[float]] = [deque(maxlen=_SAMPLES) for _ in self.sizes]
        self._factors = np.ones(len(self.sizes))

    @property
    def most(self) -> int:
        """The most nodes that may be spent now: where nothing is known, one size more than what has been tried."""
        if self._known is not None:
            return int(self.sizes[-1])
        return next(
            (int(size) for size, met in zip(self.sizes, self._ratios, strict=True) if len(met) < _TRIES),
            int(self.sizes[-1]),
        )

    def learn(self, nodes: int, seconds: float) -> None:
        """Take in the seconds of a pass."""
        i = min(int(np.searchsorted(self.sizes, nodes)), len(self.sizes) - 1)
        self._ratios[i].append(seconds / self._base(np.array([nodes]))[0])
        met = [k for k, ratios in enumerate(self._ratios) if ratios]
        middle = [float(np.median(self._ratios[k])) for k in met]
        if self._known is None:
            middle = _rising(middle, [len(self._ratios[k]) for k in met])
        self._factors = np.interp(np.arange(len(self.sizes)), met, middle)
        if self._known is None:
            self._factors[met[-1] + 1 :] *= _UNTRIED

    def of(self, nodes: npt.NDArray[np.integer]) -> Float64:
        """Return the seconds Float64[P] of passes over Int[P] nodes."""
        return np.asarray(self._base(nodes) * np.interp(nodes, self.sizes, self._factors), np.float64)

    def _base(self, nodes: npt.NDArray[np.integer]) -> Float64:
        return np.ones(len(nodes)) if self._known is None else self._known.of(nodes)


def _rising(values: list[float], counts: list[int]) -> list[float]:
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


class Values:
    """What nodes of each weight have been worth lately: acceptances against the drafter's word."""

    def __init__(self, begin: Values | None = None) -> None:
        """Begin with what others have learned, or with trust."""
        self._said: Float64 = np.zeros(len(_EDGES) + 1) if begin is None else begin._said.copy()
        self._came: Float64 = np.zeros(len(_EDGES) + 1) if begin is None else begin._came.copy()

    def of(self, weights: npt.NDArray[np.float32]) -> Float64:
        """Return the probability Float64[N] that each node is accepted."""
        trust = (self._came + _DOUBT) / (self._said + _DOUBT)
        return np.asarray(np.minimum(1, weights * trust[np.searchsorted(_EDGES, weights)]), np.float64)

    def learn(self, weights: npt.NDArray[np.float32], path: Sequence[int]) -> None:
        """Take in which nodes were accepted."""
        bands = np.searchsorted(_EDGES, weights)
        self._said *= _FORGET
        self._came *= _FORGET
        self._said += np.bincount(bands, weights, len(self._said))
        if len(path):
            self._came += np.bincount(bands[list(path)], minlength=len(self._came))


class BestSize:
    """Spends what pays."""

    def __init__(self, cost: RoundCost, values: Values) -> None:
        """Begin a request.

        Args:
            cost: of passes of this model; requests share it.
            values: of nodes in requests so far; this one goes its own way from there, and teaches it.
        """
        self._cost, self._shared, self._values = cost, values, Values(values)
        self._tokens, self._seconds = 0.0, 0.0
        self._wanted = float(cost.sizes[-1])  # the largest size of late, falling slowly
        self._pause, self._left = 0, 0  # rounds without a draft: how many at a time, and still to come
        self._hopeless = False
        self._spent, self._rounds, self._skipped = 0, 0, 0

    def budget(self) -> int:
        return 0 if self._left else min(self._cost.most, max(4, int(2 * self._wanted)))

    def cut(self, tree: DraftTree) -> DraftTree:
        self._hopeless = not len(tree)
        if tree.proposal is not None or not len(tree):
            return tree
        worth = np.append(0, np.cumsum(self._values.of(tree.weights)))
        self._hopeless = bool(worth[1] < _HOPELESS)
        return tree.head(int(np.argmax(worth - self._rate() * self._cost.of(np.arange(len(tree) + 1)))))

    def learn(self, tree: DraftTree, path: Sequence[int], tokens: int, *, target: float, draft: float) -> None:
        n = len(tree)
        self._cost.learn(n, target)
        if n:
            self._values.learn(tree.weights, path)
            self._shared.learn(tree.weights, path)
        self._tokens = _LATE * self._tokens + tokens
        self._seconds = _LATE * self._seconds + target + draft
        self._rounds += 1
        self._spent += n
        self._skipped += n == 0
        if self._left:
            self._left -= 1
            return
        self._wanted = max(float(n), 0.9 * self._wanted)
        self._pause = min(_LONGEST_PAUSE, 2 * self._pause + 1) if self._hopeless else 0
        self._left = self._pause

    def reason(self) -> str:
        if not self._rounds:
            return ""
        most = self._cost.most
        one, full = self._cost.of(np.array([0, most]))
        return (
            f"{self._spent / self._rounds:.1f} nodes a round, none in {self._skipped / self._rounds:.0%} of rounds: "
            f"a pass over {most} nodes costs {full / one:.2f} passes over none ({one * 1e3:.1f} ms)."
        )

    def _rate(self) -> float:
        """Return tokens per second of late; plain decoding's at the least, since no round need be slower."""
        plain = 1 / float(self._cost.of(np.zeros(1, int))[0])
        return max(plain, self._tokens / self._seconds) if self._seconds else plain
