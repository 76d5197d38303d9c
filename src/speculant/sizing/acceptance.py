"""Acceptance model: calibrates the drafter's estimates against how often nodes are actually accepted.

Drafters over- or underestimate the acceptance of their nodes, increasingly with depth. So accepted nodes and estimated
probabilities are summed per band of weight, over all depths and for depths 1, 2, 3 to 4, 5 to 8 and more. Their ratio
corrects the drafter's estimate; with few observations, the estimate itself prevails. Drafts that must be sized before
they exist, because they are sampled or expensive, are sized by the acceptance rate at each depth.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit

from speculant.core.tree import DraftTree, Float64

_EDGES = (0.005, 0.01, 0.02, 0.04, 0.07, 0.12, 0.2, 0.3, 0.42, 0.55, 0.7, 0.82, 0.92, 0.97)
_DEPTHS = 5
_PRIOR = 4.0  # weight of the drafter's own estimate in each band, in accepted nodes
_DECAY = 0.99  # per round
_DEEPEST = 64  # maximum depth that has its own count
_PRIOR_RATE = 0.7  # prior acceptance rate of a depth, with the weight of two rounds


class AcceptanceModel:
    """Corrects a drafter's estimates by its recent acceptance rates.

    Attributes:
        bands: Float64[2, 1 + depths, bands], decayed sums of estimated probabilities and of accepted nodes; row 0
            covers all depths.
    """

    def __init__(self, begin: AcceptanceModel | None = None) -> None:
        """Begin with a copy of another model, or with the drafter's own estimates."""
        self.bands: Float64 = np.zeros((2, _DEPTHS + 1, len(_EDGES) + 1)) if begin is None else begin.bands.copy()
        # Decayed counts of drafts that reached each depth, and of those accepted there.
        self._rates: Float64 = np.zeros((2, _DEEPEST)) if begin is None else begin._rates.copy()

    def by_depth(self, depth: int) -> Float64:
        """Return Float64[depth], the probabilities that a draft is accepted up to depth 1, 2, ..."""
        deep = min(depth, _DEEPEST)
        reached, passed = self._rates[:, :deep]
        rates = (passed + 2 * _PRIOR_RATE) / (reached + 2)
        return np.cumprod(np.append(rates, np.full(depth - deep, rates[-1] if deep else 1.0)))

    def observe(self, tree: DraftTree, path: Sequence[int]) -> None:
        """Count which nodes of a draft were accepted."""
        nodes = np.array(path, np.int64)
        _count(tree.parents, tree.weights, nodes, tree.proposal is None, self.bands, self._rates)


@njit(cache=True)
def correct_weights(parents, weights, bands):  # type: ignore[no-untyped-def]
    """Return Float64[N], the probability that each node is accepted, by a model's bands."""
    probabilities, expected, accepted = np.empty(len(weights)), bands[0], bands[1]
    rows = _depth_rows(parents)
    for node in range(len(weights)):
        row, band = rows[node], _band(weights[node])
        overall = (accepted[0, band] + _PRIOR) / (expected[0, band] + _PRIOR)
        at_depth = (accepted[row, band] + _PRIOR * overall) / (expected[row, band] + _PRIOR)
        probabilities[node] = min(1.0, weights[node] * at_depth)
    return probabilities


@njit(cache=True)
def _count(parents, weights, path, chosen, bands, rates):  # type: ignore[no-untyped-def]
    if chosen:
        _count_bands(parents, weights, path, bands)
    rates *= _DECAY
    reached, passed = rates[0], rates[1]
    last = path[-1] if len(path) else -1
    for depth in range(min(len(path), len(passed))):
        passed[depth] += 1
        reached[depth] += 1
    if len(path) < len(reached):
        for parent in parents:
            if parent == last:
                reached[len(path)] += 1
                break


@njit(cache=True)
def _count_bands(parents, weights, path, bands):  # type: ignore[no-untyped-def]
    bands *= _DECAY
    expected, accepted = bands[0], bands[1]
    rows = _depth_rows(parents)
    for node in range(len(weights)):
        band = _band(weights[node])
        expected[0, band] += weights[node]
        expected[rows[node], band] += weights[node]
    for node in path:
        band = _band(weights[node])
        accepted[0, band] += 1
        accepted[rows[node], band] += 1


@njit(cache=True)
def _band(weight):  # type: ignore[no-untyped-def]
    band = 0
    while band < len(_EDGES) and _EDGES[band] < weight:
        band += 1
    return band


@njit(cache=True)
def _depth_rows(parents):  # type: ignore[no-untyped-def]
    depths, rows = np.empty(len(parents), np.int64), np.empty(len(parents), np.int64)
    for node, parent in enumerate(parents):
        depths[node] = 1 if parent < 0 else depths[parent] + 1
        row = 1
        while row < _DEPTHS and 1 << (row - 1) < depths[node]:
            row += 1
        rows[node] = row
    return rows
