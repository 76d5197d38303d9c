"""SWIFT's search for the sublayers to skip, which runs during decoding.

Xia et al.: "SWIFT: On-the-Fly Self-Speculative Decoding for LLM Inference Acceleration", ICLR 2025, arXiv 2410.06916,
section 4. Candidates are random sets of a fixed size, except that every `bayes_interval`-th one is chosen by the scores
so far. A candidate's score is the share of recent tokens that it would have drafted correctly; the best candidate so
far drafts. The search ends when a score is high enough, when no better one was found for `patience` steps, or after
`steps` steps. The first and the last layer always run. Models of few layers have fewer sets than the authors' patience;
there, the search ends once each set could be scored a few times.

As in the paper, the members of a set are the 2 (L - 2) attention and MLP sublayers in between, or whole layers if the
layers cannot be split or the settings say so. The chosen candidate comes from a Bayesian linear regression of scores on
members (a Gaussian process with a linear kernel), with weights drawn from their posterior (Thompson 1933). For given
weights the best set of a fixed size is known exactly, so no numerical maximisation is needed, and d^2 numbers are kept
for any number of steps. The authors maximise an upper confidence bound under a Matern kernel on the unit cube and round
to a set.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from speculant.core.errors import ForeignMemoryError, UsageError
from speculant.core.sublayers import Sublayers
from speculant.drafters.layers.subsets import every_other, without

KIND = "layer-search"
NOISE = 1e-2  # variance of a score, as in the authors' Gaussian process
SPREAD = 0.25  # prior variance of the weights
_TRIES = 4  # maximum patience in candidates per possible set, whose scores differ from text to text


Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The sets that a search chooses from; their members are numbered from 0.

    Attributes:
        layers: number of decoder layers of the target.
        split: whether members are alternately the attention and the MLP of each layer, rather than whole layers.
    """

    layers: int
    split: bool

    @property
    def members(self) -> int:
        """The number of members between the first and the last layer."""
        return max(0, self.layers - 2) * (2 if self.split else 1)

    def list_skipped(self, members: Iterable[int]) -> Sublayers:
        """Return the sublayers that a set skips."""
        chosen = sorted(int(member) for member in members)
        if not self.split:
            return Sublayers.whole(member + 1 for member in chosen)
        attention, mlp = (tuple(member // 2 + 1 for member in chosen if member % 2 == part) for part in (0, 1))
        return Sublayers(attention, mlp)

    def members_of(self, skipped: Sublayers) -> list[int]:
        """Return the members of a set, given the sublayers that it skips."""
        if not self.split:
            return [index - 1 for index in skipped.mlp]
        parts = (skipped.attention, skipped.mlp)
        return sorted(2 * (index - 1) + part for part, indices in enumerate(parts) for index in indices)


def fresh_search(space: SearchSpace, size: int) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Return arrays and facts of a search without any scores; see `LayerSearch.contents`."""
    skipped = every_other(space.layers)
    arrays: dict[str, npt.NDArray[Any]] = {
        **_skipped_arrays(skipped, space),
        "precision": np.eye(space.members + 1) / SPREAD,
        "moment": np.zeros(space.members + 1),
    }
    return arrays, {**_facts(space, size), "best": 0.0, "step": 0, "since": 0, "over": False}


def space_of(facts: Mapping[str, Any]) -> SearchSpace:
    """Return the sets that a saved search chose from."""
    return SearchSpace(facts["layers"], bool(facts.get("split", False)))  # earlier versions searched whole layers


def _facts(space: SearchSpace, size: int) -> dict[str, Any]:
    return {"layers": space.layers, "size": size} | ({"split": True} if space.split else {})


def _skipped_arrays(skipped: Sublayers, space: SearchSpace) -> dict[str, npt.NDArray[Any]]:
    """Return the skipped layers; in a split space, those whose attention and those whose MLP is skipped."""
    mlp = np.array(skipped.mlp, np.int32)
    return {"attention": np.array(skipped.attention, np.int32), "skipped": mlp} if space.split else {"skipped": mlp}


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """Settings of SWIFT's search; the defaults are the authors'.

    Attributes:
        sublayers: whether attention and MLP are skipped separately, where the model's layers can be split.
        skip_ratio: share of the layers or sublayers between the first and the last layer that is skipped.
        window: number of tokens on which a candidate is scored.
        interval: number of rounds between candidates.
        bayes_interval: every so many candidates, one is chosen by the scores so far; the others are random.
        enough: score at which the search ends.
        patience: number of consecutive candidates without a better score after which it ends, at most four for each
            possible set.
        steps: number of candidates after which it ends.
    """

    sublayers: bool = False
    skip_ratio: float = 0.45
    window: int = 32
    interval: int = 1
    bayes_interval: int = 25
    enough: float = 0.95
    patience: int = 300
    steps: int = 1000


class LayerSearch:
    """Searches for the set of sublayers without which the target drafts best; safe to share between threads."""

    def __init__(self, count: int, settings: SearchSettings, *, split: bool = False) -> None:
        """Start by skipping every other layer.

        Args:
            count: number of decoder layers of the target.
            settings: settings of the search.
            split: whether attention and MLP are skipped separately.

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
        self._settings, self._space = settings, SearchSpace(count, split)
        members = self._space.members
        self._size = min(members, max(1, int(members * s.skip_ratio)))
        self._skipped = every_other(count)
        self._best, self._step, self._since = 0.0, 0, 0
        sets = math.comb(members, self._size)
        self._patience, self._over = min(settings.patience, _TRIES * sets), sets < 2
        self._precision: Float64 = np.eye(members + 1) / SPREAD
        self._moment: Float64 = np.zeros(members + 1)
        self._lock = threading.Lock()

    @property
    def layers(self) -> Sublayers:
        """The sublayers that draft: all but the best set so far."""
        return self.without(self._skipped)

    def without(self, skipped: Sublayers) -> Sublayers:
        """Return the sublayers that draft if these are skipped."""
        return without(skipped, self._space.layers)

    @property
    def over(self) -> bool:
        """Whether the search has ended."""
        return self._over

    def candidate(self, random: np.random.Generator) -> Sublayers:
        """Return the next set of skipped sublayers to score."""
        with self._lock:
            if (self._step + 1) % self._settings.bayes_interval:
                members = random.choice(self._space.members, self._size, replace=False)
            else:
                covariance = np.linalg.inv(self._precision)
                weights = random.multivariate_normal(covariance @ self._moment, covariance, method="cholesky")
                members = np.argsort(-weights[:-1], kind="stable")[: self._size]
        return self._space.list_skipped(members)

    def observe(self, skipped: Sublayers, score: float) -> None:
        """Add a candidate's score: the share of tokens that it would have drafted correctly."""
        with self._lock:
            features = np.zeros(self._space.members + 1)  # 1 for each member that is skipped, and a constant 1
            features[[*self._space.members_of(skipped), -1]] = 1
            self._precision += np.outer(features, features) / NOISE
            self._moment += features * score / NOISE
            self._step += 1
            self._since += 1
            if score > self._best:
                self._skipped, self._best, self._since = skipped, score, 0
            s = self._settings
            self._over |= self._best > s.enough or self._since > self._patience or self._step >= s.steps

    def contents(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Return the arrays and facts from which `resume` continues."""
        with self._lock:
            arrays: dict[str, npt.NDArray[Any]] = {
                **_skipped_arrays(self._skipped, self._space),
                "precision": self._precision.copy(),
                "moment": self._moment.copy(),
            }
            found = {"best": self._best, "step": self._step, "since": self._since, "over": bool(self._over)}
            return arrays, {**_facts(self._space, self._size), **found}

    def resume(self, arrays: Mapping[str, npt.NDArray[Any]], facts: Mapping[str, Any]) -> None:
        """Continue a saved search of the same model.

        Raises:
            ForeignMemoryError: it was for another number of layers, or for sets of another kind or size.
        """
        if (space := space_of(facts)) != self._space or facts["size"] != self._size:
            theirs, ours = (
                f"{size} of {each.members} {'sublayers' if each.split else 'layers'} between the first and the last of "
                f"{each.layers} layers"
                for each, size in ((space, facts["size"]), (self._space, self._size))
            )
            raise ForeignMemoryError(
                f"the search skipped {theirs}, but here {ours} are skipped. Name the model, and the settings sublayers "
                "and skip_ratio, that it was made with, or another file."
            )
        with self._lock:
            attention, mlp = (
                tuple(int(index) for index in arrays[name])
                for name in ("attention" if space.split else "skipped", "skipped")
            )
            self._skipped = Sublayers(attention, mlp)
            self._precision, self._moment = np.array(arrays["precision"]), np.array(arrays["moment"])
            self._best, self._step = float(facts["best"]), int(facts["step"])
            self._since, self._over = int(facts["since"]), self._over or bool(facts["over"])
