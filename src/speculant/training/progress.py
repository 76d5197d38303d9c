"""The progress of a training, for display and for its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from speculant.training.evaluate import Acceptance


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a training.

    Attributes:
        step: number of steps done.
        done: share of the training that is done.
        losses: by depth, mean losses since the last measurement.
        seconds: time spent so far, by all runs.
        seconds_left: estimated time left; None after too few steps.
        tokens_per_second: text tokens read per second.
        acceptance: the measurement just made, if any.
        best: whether that is the best so far.
    """

    step: int
    done: float
    losses: tuple[float, ...]
    seconds: float
    seconds_left: float | None
    tokens_per_second: float
    acceptance: Acceptance | None = None
    best: bool = False


@dataclass(slots=True)
class TrainState:
    """The contents of a checkpoint besides weights and optimizers.

    Attributes:
        step: number of steps done.
        seconds: time spent.
        tokens: number of text tokens read.
        stale: number of measurements since the best one.
        history: all measurements.
        best: the weights to keep, the best or the last ones.
        best_step: step of those weights.
        best_score: maximum tokens per greedy round so far.
    """

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    stale: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)
    best_step: int = 0
    best_score: float = 0.0
