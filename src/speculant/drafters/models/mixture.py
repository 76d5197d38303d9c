"""A logistic mixture of two opinions on the candidates of a node, learned online."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from speculant.core.tree import Float64

MINIMUM = 1e-4  # probabilities count as at least this, and at most 1 less this
RATE = 0.02  # of learning, per candidate


class Mixture:
    """The weights of the opinions, over all requests."""

    def __init__(self, first: Sequence[float]) -> None:
        """Begin with weights, one for each of F features."""
        self._weights = np.array(first)
        self._lock = threading.Lock()

    @property
    def weights(self) -> Float64:
        """Float64[F], not to be changed."""
        return self._weights

    def update(self, step: Callable[[Float64], None]) -> None:
        """Replace the weights by a copy that a function changed; one thread after the other."""
        with self._lock:
            weights = self._weights.copy()
            step(weights)
            self._weights = weights

    def probabilities(self, features: Float64) -> Float64:
        """Return the probabilities Float64[C] of one node's candidates, of features Float64[C, F]."""
        p = 1 / (1 + np.exp(-(features @ self._weights)))
        return np.asarray(p / max(1.0, float(p.sum())), np.float64)

    def learn(self, features: Float64, right: Float64) -> None:
        """Take a gradient step of the logarithmic loss for each candidate; `right` is 1 for the target's token."""
        with self._lock:
            p = 1 / (1 + np.exp(-(features @ self._weights)))
            self._weights = self._weights + RATE * (right - p) @ features

    def learn_path(self, seen: Mapping[tuple[int, ...], tuple[list[int], Float64]], tokens: list[int]) -> None:
        """Learn what the target chose along a path.

        Args:
            seen: the candidates and features Float64[C, F] below nodes of the draft, by the tokens from the root.
            tokens: that were committed.
        """
        for depth, token in enumerate(tokens):
            if (found := seen.get(tuple(tokens[:depth]))) is not None:
                candidates, features = found
                self.learn(features, np.array([float(each == token) for each in candidates]))


def logit(p: float) -> float:
    """Return the logit of a probability, which is kept off 0 and 1."""
    p = min(max(p, MINIMUM), 1 - MINIMUM)
    return math.log(p / (1 - p))
