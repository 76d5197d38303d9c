"""The settings of a training."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from speculant.core.errors import UsageError
from speculant.training.loss_terms import parse_terms
from speculant.training.schedule import SCHEDULES

OPTIMIZERS = ("adamw", "muon")
PRECISIONS = ("float32", "bfloat16")
KEPT = ("best", "last")
MEMORY_ONLY = ("texts", "anchors", "accumulate")  # may change where a training goes on
COUNTS = ("depth", "texts", "anchors", "accumulate", "evaluate_every", "held_out", "opening", "new_tokens")  # 1 or more


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """What determines a training's result, together with head, target and data.

    Attributes:
        steps: of the optimizer; None where minutes end it. Without either, some passes over the data.
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
        keep: the weights that are kept: "best" by the tokens of a greedy round on held-out texts, or "last".
        on_policy: the share of batches whose texts the draft model writes itself, spread evenly (DistillSpec).
        temperature: at which it writes them.
        opening: tokens of a text that it continues, where the length of the text's prompt is not known.
        new_tokens: that it writes, at most.
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
    keep: str = "best"
    on_policy: float = 0.0
    temperature: float = 1.0
    opening: int = 16
    new_tokens: int = 64

    def __post_init__(self) -> None:
        parse_terms(self.loss)
        for name, value, known in (
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("schedule", self.schedule, SCHEDULES),
            ("precision", self.precision, PRECISIONS),
            ("keep", self.keep, KEPT),
        ):
            if value not in known:
                raise UsageError(f"{name} must be one of {', '.join(known)}, not {value!r}.")
        for name in ("seed", *COUNTS):
            if getattr(self, name) < (bound := int(name in COUNTS)):
                raise UsageError(f"{name} must be {bound} or more, not {getattr(self, name)}.")
        if not 0 <= self.on_policy <= 1:
            raise UsageError(f"on_policy must be a share from 0 to 1, not {self.on_policy}.")
        if not 0 < self.temperature < math.inf:
            raise UsageError(f"temperature must be above 0, not {self.temperature}: the draft model samples its texts.")

    def record(self) -> dict[str, Any]:
        """Return them for a JSON file."""
        return asdict(self)
