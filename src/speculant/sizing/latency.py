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

import numpy as np
import numpy.typing as npt

from speculant.core.tree import Float64
from speculant.sizing.drafting_time import DraftingTime
from speculant.sizing.pass_costs import DUE, FIRST_DUE, FORGET, LEVEL, PATIENCE, TRIED, TRIES, observe_pass
from speculant.sizing.step_cost import StepCost

SIZES = (0, 1, 3, 7, 11, 15, 23, 31, 47, 63, 95, 127, 191, 255)  # with the root's row: 1, 2, and blocks of 4 and more
_SINGLE = 16  # draft rows up to which each number of rows has a cost of its own
_WORTH, _SKIPPED = 4, 15  # nodes a draft needs to pay, per plain pass that it takes; maximum nodes not tried in order
_DEAREST, _EMPTY_SHARE = 2.0, 0.2  # maximum of the ratio of `observe_empty`, and the share by which it adapts
_SHORTEST = 1e-9  # seconds: passes take longer, whatever the clock says


class LatencyModel:
    """Predicts the seconds of a round from the number of draft rows of its pass.

    Attributes:
        sizes: Int64[T], the numbers of draft rows that are tried in ascending order.
        drafting: drafting times, in units of `curve`.
    """

    def __init__(self, *, maximum: int, known: StepCost | None = None) -> None:
        """Begin with a measured curve, or with none.

        Args:
            maximum: maximum number of draft rows of a pass.
            known: measured seconds of a pass on this model and device; None to try larger sizes as long as they pay.
        """
        self.sizes = np.array([size for size in SIZES if size < maximum] + [maximum])
        self.drafting = DraftingTime()
        sizes = measured_sizes(maximum)
        self._ends = np.array(sizes)  # maximum rows of each size that has a cost
        self._bucket = np.searchsorted(sizes, np.arange(maximum + 1)).tolist()  # rows -> index of their size
        self._climbed = np.flatnonzero(np.isin(sizes, self.sizes))
        self._known = known is not None
        plain = 1.0 if known is None else float(known.of(np.zeros(1))[0])
        self._base = np.ones(maximum + 1) if known is None else known.of(np.arange(maximum + 1)) / plain
        self._curve = self._base.copy()
        self._by_size, self._now = np.zeros((9, len(sizes))), np.zeros(4)  # see `pass_costs`
        self._by_size[[DUE, PATIENCE]] = FORGET
        self._now[FIRST_DUE], self._now[LEVEL] = FORGET, plain
        self._maximum = int(self.sizes[-1 if known is not None else 0])
        self._empty = 1.0  # usual time of the passes of `observe_empty`, in plain passes

    @property
    def maximum(self) -> int:
        """Maximum draft rows for now: without a measured curve, the next size above those that have been tried."""
        return self._maximum

    @property
    def level(self) -> float:
        """Current length of one unit of `curve`, in seconds."""
        return float(self._now[LEVEL])

    @property
    def curve(self) -> Float64:
        """Float64[maximum + 1], the cost of passes over 0, 1, ... draft rows; 0 rows cost about 1. Changes in place."""
        return self._curve

    def seconds(self, rows: npt.NDArray[np.integer]) -> Float64:
        """Return the seconds Float64[P] that passes over `rows` Int[P] draft rows currently take."""
        return np.asarray(self.level * self._curve[np.minimum(rows, len(self._curve) - 1)], np.float64)

    def observe(self, rows: int, seconds: float) -> None:
        """Add the seconds of a pass over `rows` draft rows."""
        rows = min(rows, len(self._bucket) - 1)
        size = self._bucket[rows]
        observe_pass(
            self._by_size,
            self._now,
            self._curve,
            self._base,
            self._ends,
            self._climbed,
            self._known,
            size,
            rows,
            max(seconds, _SHORTEST),
        )
        if not self._known and self._by_size[TRIED, size] == TRIES:
            self._allow(int(np.searchsorted(self.sizes, self._ends[size], side="right")))

    def observe_empty(self, rows: int, seconds: float) -> float:
        """Add the seconds of a pass with a model's draft that has no node; return its cost.

        It takes longer than a plain pass if it returns hidden states, or continues from layers that drafting ran. If it
        counted as a plain one, drafts would seem to cost less than they do.
        """
        plain = float(self._curve[min(rows, len(self._curve) - 1)])
        ratio = min(_DEAREST, seconds / (self.level * plain))
        self._empty = max(1.0, self._empty + _EMPTY_SHARE * (ratio - self._empty))
        self.observe(rows, seconds / self._empty)
        return plain * self._empty

    def observe_drafting(self, nodes: float, seconds: float, *, even: bool = False, usual: bool = True) -> float:
        """Add the drafting and learning time of a sequence in a round; return the time charged, in units of `curve`.

        The other arguments are those of `DraftingTime.observe`.
        """
        charged = self.drafting.observe(nodes, seconds / self.level, even=even, usual=usual)
        if self._maximum < _SKIPPED:  # smaller sizes may not gain what drafting takes
            self._allow(int(np.searchsorted(self.sizes, min(_SKIPPED, _WORTH * self.drafting.usual))))
        return charged

    def _allow(self, place: int) -> None:
        """Allow drafts of up to the size at this place of `sizes`."""
        self._maximum = max(self._maximum, int(self.sizes[min(place, len(self.sizes) - 1)]))


def measured_sizes(maximum: int) -> list[int]:
    """Return the numbers of draft rows, up to `maximum`, that have a cost of their own."""
    return [size for size in range(maximum) if size < _SINGLE or size in SIZES] + [maximum]
