"""The calibration of a drafter's probabilities: predicted against observed acceptance of its nodes.

A tree's weights are joint probabilities, so a node's weight divided by its parent's is the probability that it is
accepted given that its parent was. It can be checked wherever the parent was accepted, the root included, since the
target's token is known there. The table of 20 equal bins is a reliability diagram; the expected calibration error is
the mean distance between predicted and observed over the bins, weighted by their counts (Guo et al., "On Calibration
of Modern Neural Networks", ICML 2017, arXiv 1706.04599, equation 3).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from speculant.core.drafter import Verified

BINS = 20


class Reliability:
    """Counts per bin: nodes that could be checked, the sum of their predictions, and the number accepted."""

    def __init__(self) -> None:
        self.counts = np.zeros(BINS, np.int64)
        self.predicted = np.zeros(BINS)
        self.hits = np.zeros(BINS, np.int64)
        self._estimates = False
        self._pending: list[tuple[npt.NDArray[Any], ...]] = []

    def add(self, verified: Verified) -> None:
        """Add a round; cheap, since counting is deferred to `fold`."""
        tree = verified.tree
        nodes = len(tree)
        if not nodes:
            return
        reached = np.full(nodes + 1, -1)  # index of the committed token after each node; the last entry: the root's
        reached[nodes] = 0
        reached[verified.path] = np.arange(1, len(verified.path) + 1)
        at = reached[tree.parents]
        checked = at >= 0
        above = np.append(tree.weights, np.float32(1))[tree.parents[checked]]
        hits = tree.tokens[checked] == verified.tokens[at[checked]]
        self._pending.append((tree.weights[checked], above, hits))

    def fold(self) -> None:
        """Count the added rounds."""
        if not self._pending:
            return
        weights, above, hits = (np.concatenate(column) for column in zip(*self._pending, strict=True))
        self._pending.clear()
        shares = np.divide(weights, above, out=np.zeros(len(weights)), where=above > 0)
        bins = np.minimum((shares * BINS).astype(np.int64), BINS - 1)
        self.counts += np.bincount(bins, minlength=BINS)
        self.predicted += np.bincount(bins, weights=shares, minlength=BINS)
        self.hits += np.bincount(bins, weights=hits, minlength=BINS).astype(np.int64)
        self._estimates |= bool((shares < 1).any())

    @property
    def ece(self) -> float | None:
        """Expected calibration error; None if no node was checked or all have probability 1.

        A drafter without probabilities gives every node the weight 1, which is not an estimate.
        """
        if not self._estimates:
            return None
        return float(np.abs(self.predicted - self.hits).sum() / self.counts.sum())

    def to_json(self) -> list[dict[str, float]]:
        """Return count, mean prediction and accepted share of the bins that are not empty."""
        return [
            {"count": int(count), "predicted": float(predicted / count), "observed": float(hits / count)}
            for count, predicted, hits in zip(self.counts, self.predicted, self.hits, strict=True)
            if count and self._estimates
        ]
