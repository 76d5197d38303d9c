"""How far a training is: for people, and for its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from speculant.training.evaluate import Acceptance


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a training is.

    Attributes:
        step: steps done.
        done: the share of the training.
        losses: by depth, means since the last measurement.
        seconds: spent so far, by all runs.
        seconds_left: estimated; None after too few steps to tell.
        tokens_per_second: tokens of texts read.
        acceptance: what was just measured, if anything was.
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
    """What a checkpoint holds beside weights and optimizers.

    Attributes:
        step: steps done.
        seconds: spent.
        tokens: of texts that were read.
        stale: measurements since the best one.
        history: of the measurements.
        best: the weights that are kept, the best or the last ones.
        best_step: when they were.
        best_score: the most tokens of a greedy round so far.
    """

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    stale: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)
    best_step: int = 0
    best_score: float = 0.0
