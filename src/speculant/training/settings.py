"""The settings of a training."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from speculant.core.errors import UsageError
from speculant.training.losses import parse_loss
from speculant.training.optimizers import OPTIMIZERS
from speculant.training.schedule import SCHEDULES

PRECISIONS = ("float32", "bfloat16")
MEMORY_ONLY = ("texts", "anchors", "accumulate")  # may change where a training goes on


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """What determines a training's result, together with head, target and data.

    Attributes:
        steps: of the optimizer; None where minutes end it.
        minutes: after which it ends; the learning rate then follows the clock, and results are not repeatable.
        loss: see `training.losses`.
        feature_weight: of the recipe's own loss.
        depth: depths trained.
        depth_from: the share of the training after which more than the first depth is trained.
        decay: of the weights of deeper losses, per depth.
        measured: depths at which acceptance is measured.
        lr, optimizer, schedule, warmup, weight_decay, clip: of the optimizer; clip 0 clips nothing.
        texts: of a batch.
        anchors: positions of a text that are trained, at most.
        accumulate: batches of a step.
        precision: of the head's arithmetic; its weights stay float32.
        seed: of new weights, order and anchors.
        evaluate_every: steps between measurements of acceptance.
        patience: measurements without gain after which it ends; 0 for never.
        held_out: texts that acceptance is measured on.
    """

    steps: int | None = None
    minutes: float | None = None
    loss: str = "kl"
    feature_weight: float = 0.0
    depth: int = 1
    depth_from: float = 0.0
    decay: float = 0.8
    measured: int = 4
    lr: float = 1e-3
    optimizer: str = "adamw"
    schedule: str = "linear"
    warmup: int = 50
    weight_decay: float = 0.0
    clip: float = 1.0
    texts: int = 8
    anchors: int = 32
    accumulate: int = 1
    precision: str = "float32"
    seed: int = 0
    evaluate_every: int = 200
    patience: int = 0
    held_out: int = 128

    def __post_init__(self) -> None:
        parse_loss(self.loss)
        for name, value, known in (
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("schedule", self.schedule, SCHEDULES),
            ("precision", self.precision, PRECISIONS),
        ):
            if value not in known:
                raise UsageError(f"{name} must be one of {', '.join(known)}, not {value!r}.")
        if self.steps is None and self.minutes is None:
            raise UsageError("a training needs a number of steps, or of minutes.")
        least = {"depth": 1, "texts": 1, "anchors": 1, "accumulate": 1, "evaluate_every": 1, "held_out": 1, "seed": 0}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise UsageError(f"{name} must be {bound} or more, not {getattr(self, name)}.")

    def record(self) -> dict[str, Any]:
        """Return them for a JSON file."""
        return asdict(self)
