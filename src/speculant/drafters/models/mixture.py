"""A logistic mixture of two probability estimates for a node's candidates, learned online."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from speculant.core.tree import Float64

MINIMUM = 1e-4  # probabilities are clamped to this and 1 minus this
RATE = 0.02  # learning rate per candidate


class Mixture:
    """The mixture's weights, shared by all requests."""

    def __init__(self, first: Sequence[float]) -> None:
        """Set the initial weights, one for each of F features."""
        self._weights = np.array(first)
        self._lock = threading.Lock()

    @property
    def weights(self) -> Float64:
        """Float64[F], read-only."""
        return self._weights

    def update(self, step: Callable[[Float64], None]) -> None:
        """Replace the weights by a copy that `step` has changed; one thread at a time."""
        with self._lock:
            weights = self._weights.copy()
            step(weights)
            self._weights = weights

    def probabilities(self, features: Float64) -> Float64:
        """Return the probabilities Float64[C] of one node's candidates, given features Float64[C, F]."""
        p = 1 / (1 + np.exp(-(features @ self._weights)))
        return np.asarray(p / max(1.0, float(p.sum())), np.float64)

    def learn(self, features: Float64, right: Float64) -> None:
        """Take a gradient step on the log loss of each candidate; `right` is 1 for the target's token."""
        with self._lock:
            p = 1 / (1 + np.exp(-(features @ self._weights)))
            self._weights = self._weights + RATE * (right - p) @ features

    def learn_path(self, seen: Mapping[tuple[int, ...], tuple[list[int], Float64]], tokens: list[int]) -> None:
        """Learn from the target's choices along a path.

        Args:
            seen: candidates and features Float64[C, F] below nodes of the draft, by the tokens from the root.
            tokens: committed tokens.
        """
        for depth, token in enumerate(tokens):
            if (found := seen.get(tuple(tokens[:depth]))) is not None:
                candidates, features = found
                self.learn(features, np.array([float(each == token) for each in candidates]))


def logit(p: float) -> float:
    """Return the logit of a probability, clamped away from 0 and 1."""
    p = min(max(p, MINIMUM), 1 - MINIMUM)
    return math.log(p / (1 - p))
