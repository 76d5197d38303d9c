"""What drafted nodes turn out to be worth: how often such nodes were accepted, against what the drafter said.

Drafters overrate their nodes, or underrate them, more so with depth. So acceptances and promised probabilities are
summed in bands of weight, over all depths and for depths 1, 2, 3 to 4, 5 to 8 and more; their ratio corrects the
drafter's word, and where little was met, the word counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from numba import njit

from speculant.core.tree import DraftTree

Float64 = npt.NDArray[np.float64]

_EDGES = (0.005, 0.01, 0.02, 0.04, 0.07, 0.12, 0.2, 0.3, 0.42, 0.55, 0.7, 0.82, 0.92, 0.97)
_DEPTHS = 5
_DOUBT = 4.0  # nodes' worth of acceptances by which the drafter's own word counts in each band of weights
_FORGET = 0.99  # per round
_LATE, _BEGUN = 0.98, 10.0  # per round; and how many rounds of others' speed a request begins with


class Values:
    """What nodes of each weight and depth have been worth lately, and how fast decoding was with them."""

    def __init__(self, begin: Values | None = None) -> None:
        """Begin with what others have learned, or with trust."""
        shape = _DEPTHS + 1, len(_EDGES) + 1  # the first row: of all depths
        self._said: Float64 = np.zeros(shape) if begin is None else begin._said.copy()
        self._came: Float64 = np.zeros(shape) if begin is None else begin._came.copy()
        self._tokens, self._passes = 0.0, 0.0
        if begin is not None and begin._passes:
            kept = min(1.0, _BEGUN / begin._passes)
            self._tokens, self._passes = kept * begin._tokens, kept * begin._passes

    @property
    def rate(self) -> float:
        """Tokens per plain pass's time of late; plain decoding's at the least, since no round need be slower."""
        return max(1.0, self._tokens / self._passes) if self._passes else 1.0

    def of(self, tree: DraftTree) -> Float64:
        """Return the probability Float64[N] that each node is accepted."""
        return _worths(tree.parents, tree.weights, self._said, self._came)

    def learn(self, tree: DraftTree, path: Sequence[int]) -> None:
        """Take in which nodes of a draft were accepted."""
        _count(tree.parents, tree.weights, np.array(path, np.int64), self._said, self._came)

    def learn_rate(self, tokens: int, passes: float) -> None:
        """Take in what a round gave and took, in plain passes."""
        self._tokens, self._passes = _LATE * self._tokens + tokens, _LATE * self._passes + passes


@njit(cache=True)
def _worths(parents, weights, said, came):  # type: ignore[no-untyped-def]
    worths = np.empty(len(weights))
    rows = _rows(parents)
    for node in range(len(weights)):
        row, band = rows[node], _band(weights[node])
        trust = (came[0, band] + _DOUBT) / (said[0, band] + _DOUBT)
        deep = (came[row, band] + _DOUBT * trust) / (said[row, band] + _DOUBT)
        worths[node] = min(1.0, weights[node] * deep)
    return worths


@njit(cache=True)
def _count(parents, weights, path, said, came):  # type: ignore[no-untyped-def]
    said *= _FORGET
    came *= _FORGET
    rows = _rows(parents)
    for node in range(len(weights)):
        band = _band(weights[node])
        said[0, band] += weights[node]
        said[rows[node], band] += weights[node]
    for node in path:
        band = _band(weights[node])
        came[0, band] += 1
        came[rows[node], band] += 1


@njit(cache=True)
def _band(weight):  # type: ignore[no-untyped-def]
    band = 0
    while band < len(_EDGES) and _EDGES[band] < weight:
        band += 1
    return band


@njit(cache=True)
def _rows(parents):  # type: ignore[no-untyped-def]
    depths, rows = np.empty(len(parents), np.int64), np.empty(len(parents), np.int64)
    for node, parent in enumerate(parents):
        depths[node] = 1 if parent < 0 else depths[parent] + 1
        row = 1
        while row < _DEPTHS and 1 << (row - 1) < depths[node]:
            row += 1
        rows[node] = row
    return rows
