"""SWIFT's search of the layers to skip, while text is decoded.

Xia et al.: "SWIFT: On-the-Fly Self-Speculative Decoding for LLM Inference Acceleration", ICLR 2025, arXiv 2410.06916,
section 4. Candidates are random sets of a fixed size, and in every `bayes_interval`-th step one that the scores so far
make promising; a candidate's score is the share of recent tokens that it would have drafted rightly, and the best one
so far drafts. The search ends when a score is high enough, when nothing better was found for long, or after so many
steps. First and last layer are always run.

Differences: sets are of whole layers, where the paper leaves out attention and MLP separately; and the promising
candidate comes from Bayesian linear regression of scores on the layers skipped (a Gaussian process with a linear
kernel), the weights being drawn from their posterior (Thompson 1933). The best set of a fixed size for drawn weights is
known exactly, so nothing has to be maximised numerically, and d^2 numbers are kept whatever the number of steps. The
authors maximise an upper confidence bound under a Matern kernel on the unit cube and round to a set.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from speculant.core.errors import ForeignMemoryError, UsageError
from speculant.drafters.layers.subsets import Layers, every_other, without

KIND = "layer-search"
NOISE = 1e-2  # variance of a score, as the authors' Gaussian process has it
SPREAD = 0.25  # variance of the weights before any score


Float64 = npt.NDArray[np.float64]


def fresh_search(layers: int, size: int) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Return arrays and facts of a search that has scored nothing, see `LayerSearch.contents`."""
    middle = max(0, layers - 2)
    arrays: dict[str, npt.NDArray[Any]] = {
        "skipped": np.array(every_other(layers), np.int32),
        "precision": np.eye(middle + 1) / SPREAD,
        "moment": np.zeros(middle + 1),
    }
    return arrays, {"layers": layers, "size": size, "best": 0.0, "step": 0, "since": 0, "over": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """What SWIFT's search goes by; the defaults are the authors'.

    Attributes:
        skip_ratio: share of the layers between the first and the last that is left out.
        window: tokens that a candidate is scored on.
        interval: rounds from one candidate to the next.
        bayes_interval: one candidate in so many is a promising one, the others are random.
        enough: score that ends the search.
        patience: candidates without a better score that end it.
        steps: candidates that end it.
    """

    skip_ratio: float = 0.45
    window: int = 32
    interval: int = 1
    bayes_interval: int = 25
    enough: float = 0.95
    patience: int = 300
    steps: int = 1000


class LayerSearch:
    """Looks for the set of layers without which the target drafts best; safe to share between threads."""

    def __init__(self, count: int, settings: SearchSettings) -> None:
        """Begin with every other layer.

        Args:
            count: decoder layers of the target.
            settings: what to go by.

        Raises:
            UsageError: a setting is out of range.
        """
        s = settings
        if not 0 < s.skip_ratio <= 1:
            raise UsageError(f"skip_ratio must be above 0 and at most 1, not {s.skip_ratio}.")
        if not 0 <= s.enough <= 1:
            raise UsageError(f"enough must be from 0 to 1, not {s.enough}.")
        for name in ("window", "interval", "bayes_interval", "patience", "steps"):
            if getattr(s, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(s, name)}.")
        self._count, self._settings = count, settings
        self._middle = max(0, count - 2)
        self._size = min(self._middle, max(1, int(self._middle * s.skip_ratio)))
        self._skipped = every_other(count)
        self._best, self._step, self._since = 0.0, 0, 0
        self._over = math.comb(self._middle, self._size) < 2
        self._precision: Float64 = np.eye(self._middle + 1) / SPREAD
        self._moment: Float64 = np.zeros(self._middle + 1)
        self._lock = threading.Lock()

    @property
    def layers(self) -> Layers:
        """The layers that draft: all but the best set so far."""
        return self.without(self._skipped)

    def without(self, skipped: Layers) -> Layers:
        """Return the layers that draft without these."""
        return without(skipped, self._count)

    @property
    def over(self) -> bool:
        """Whether the search has ended."""
        return self._over

    def candidate(self, random: np.random.Generator) -> Layers:
        """Return the next set to score, of layers to skip."""
        with self._lock:
            if (self._step + 1) % self._settings.bayes_interval:
                places = random.choice(self._middle, self._size, replace=False)
            else:
                covariance = np.linalg.inv(self._precision)
                weights = random.multivariate_normal(covariance @ self._moment, covariance, method="cholesky")
                places = np.argsort(-weights[:-1], kind="stable")[: self._size]
        return tuple(sorted(int(place) + 1 for place in places))

    def observe(self, skipped: Layers, score: float) -> None:
        """Take the share of tokens that a candidate would have drafted rightly."""
        with self._lock:
            features = self._features(skipped)
            self._precision += np.outer(features, features) / NOISE
            self._moment += features * score / NOISE
            self._step += 1
            self._since += 1
            if score > self._best:
                self._skipped, self._best, self._since = skipped, score, 0
            s = self._settings
            self._over |= self._best > s.enough or self._since > s.patience or self._step >= s.steps

    def contents(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Return arrays and facts from which `resume` goes on."""
        with self._lock:
            arrays: dict[str, npt.NDArray[Any]] = {
                "skipped": np.array(self._skipped, np.int32),
                "precision": self._precision.copy(),
                "moment": self._moment.copy(),
            }
            found = {"best": self._best, "step": self._step, "since": self._since, "over": bool(self._over)}
            return arrays, {"layers": self._count, "size": self._size, **found}

    def resume(self, arrays: Mapping[str, npt.NDArray[Any]], facts: Mapping[str, Any]) -> None:
        """Go on where a search of the same model was.

        Raises:
            ForeignMemoryError: it was of another number of layers, or of sets of another size.
        """
        if (facts["layers"], facts["size"]) != (self._count, self._size):
            raise ForeignMemoryError(
                f"the search skipped {facts['size']} of {facts['layers']} layers, but here {self._size} of "
                f"{self._count} are skipped. Name the model and the skip_ratio that it was made with, or another file."
            )
        with self._lock:
            self._skipped = tuple(int(index) for index in arrays["skipped"])
            self._precision, self._moment = np.array(arrays["precision"]), np.array(arrays["moment"])
            self._best, self._step = float(facts["best"]), int(facts["step"])
            self._since, self._over = int(facts["since"]), self._over or bool(facts["over"])

    def _features(self, skipped: Layers) -> Float64:
        """Return 1 for each layer between first and last that is skipped, and a constant 1."""
        features = np.zeros(self._middle + 1)
        features[[index - 1 for index in skipped]] = 1
        features[-1] = 1
        return features
