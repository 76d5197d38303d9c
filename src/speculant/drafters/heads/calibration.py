"""How sharp a head's probabilities have to be, so that its best candidate is right as often as it says.

A head is trained to follow the target's distribution, and greedy decoding takes the target's best token: where the head
finds its own best one 0.55 probable it may be right in 0.8 of all cases. Trees of the most probable paths then spend
nodes on siblings that a deeper path would have gained more with. So the logits are divided by a temperature, which
follows the acceptance of late (temperature scaling: Guo et al. 2017, arXiv 1706.04599).
"""

from __future__ import annotations

import math

from numba import njit

from speculant.core.tree import ROOT, DraftTree, Int64

_RATE = 0.03  # of the logarithm, per candidate
_MINIMUM, _FIRST, _MAXIMUM = 0.25, 0.7, 2.0  # temperatures


class Calibration:
    """The temperature of a head's chosen tokens, over all requests."""

    def __init__(self) -> None:
        self._log = math.log(_FIRST)

    @property
    def temperature(self) -> float:
        """What logits are divided by, beside the temperature of sampling."""
        return math.exp(self._log)

    def observe(self, draft: DraftTree, path: Int64) -> None:
        """Compare the best candidates of a draft of chosen tokens with what was accepted.

        Args:
            draft: with the head's probabilities, the most probable nodes first.
            path: the nodes of it that are the text.
        """
        missed = _RATE * excess(draft.parents, draft.weights, path)
        self._log = min(math.log(_MAXIMUM), max(math.log(_MINIMUM), self._log - missed))


@njit(cache=True, nogil=True)
def excess(parents, weights, path):  # type: ignore[no-untyped-def]
    """Return how many best candidates below the root and the accepted nodes were right, less what was expected."""
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
