"""Calibration of a head's probabilities, so that its best candidate is accepted as often as they say.

A head is trained to follow the target's distribution, but greedy decoding takes the target's best token: if the head
gives its best token a probability of 0.55, it may be accepted in 80 % of cases. Trees of the most probable paths then
spend nodes on siblings where a deeper path would gain more. So the logits are divided by a temperature, which follows
recent acceptance (temperature scaling: Guo et al. 2017, arXiv 1706.04599).
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from speculant.core.tree import ROOT, DraftTree, Int64

_RATE = 0.03  # learning rate of the temperature's logarithm, per candidate
_MINIMUM, _FIRST, _MAXIMUM = 0.25, 0.7, 2.0  # minimum, initial and maximum temperature


class Calibration:
    """Temperature for a head's deterministic drafts, over all requests."""

    def __init__(self) -> None:
        self._log = math.log(_FIRST)

    @property
    def temperature(self) -> float:
        """Divisor of the logits, in addition to the sampling temperature."""
        return math.exp(self._log)

    def observe(self, draft: DraftTree, path: Int64) -> None:
        """Compare the best candidates of a deterministic draft with what was accepted.

        Args:
            draft: draft weighted by the head's probabilities, most probable nodes first.
            path: nodes of the draft that the text followed.
        """
        missed = _RATE * excess(draft.parents, draft.weights, path)
        self._log = min(math.log(_MAXIMUM), max(math.log(_MINIMUM), self._log - missed))


def warm_up() -> None:
    """Load the compiled kernel, so that the first request does not wait for it."""
    Calibration().observe(DraftTree.empty(), np.empty(0, np.int64))


@njit(cache=True, nogil=True)
def excess(parents, weights, path):  # type: ignore[no-untyped-def]
    """Return how many best candidates below the root and accepted nodes were correct, minus the expected number."""
    total, parent = 0.0, ROOT
    for depth in range(len(path) + 1):
        best = ROOT
        for node in range(max(parent, 0), len(parents)):
            if parents[node] == parent:
                best = node
                break
        if best == ROOT:
            break
        above = 1.0 if parent == ROOT else weights[parent]
        total -= weights[best] / above if above > 0 else 0.0
        if depth < len(path):
            total += 1.0 if path[depth] == best else 0.0
            parent = path[depth]
    return total
