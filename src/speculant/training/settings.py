"""The settings of a training."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from speculant.core.errors import UsageError
from speculant.options import kinds, option
from speculant.training.loss_terms import parse_terms
from speculant.training.schedule import SCHEDULES

OPTIMIZERS = ("adamw", "muon")
PRECISIONS = ("float32", "bfloat16")
KEPT = ("best", "last")
MEMORY_ONLY = ("texts", "anchors", "accumulate")  # may change when a training is resumed
COUNTS = (  # 1 or more
    "depth",
    "texts",
    "anchors",
    "accumulate",
    "evaluate_every",
    "held_out",
    "before_tokens",
    "opening",
    "new_tokens",
)


_option = partial(option.option, panel="Training")
_joint = partial(option.option, panel="Joint training")
_draft_model = partial(option.option, panel="Draft model")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """The settings that determine a training's result, together with head, target and data.

    Attributes:
        steps: optimizer steps; None if limited by minutes. Without either, some passes over the data.
        minutes: time limit; the learning rate then follows the clock, and results are not reproducible.
        loss: see `training.losses`.
        feature_weight: weight of the recipe's own loss; with `joint`, of the model's.
        depth: number of depths trained.
        depth_from: share of the training after which more than the first depth is trained.
        decay: decay factor of the loss weight per depth.
        measured: number of depths at which acceptance is measured.
        lr, optimizer, schedule, warmup, weight_decay, clip: settings of the optimizer; clip 0 disables clipping.
        texts: texts per batch.
        anchors: maximum trained positions per text.
        accumulate: batches per step.
        precision: precision of the head's arithmetic; its weights stay float32.
        seed: seed of new weights, order and anchors.
        evaluate_every: steps between measurements of acceptance.
        patience: number of measurements without gain after which training ends; 0 for never.
        held_out: number of texts on which acceptance is measured.
        keep: the weights to keep: "best" by the tokens of a greedy round on held-out texts, or "last".
        joint: whether a copy of the target is trained together with the heads (Medusa-2).
        joint_from: share of the training after which the copy is trained.
        joint_rate: its learning rate, relative to the heads'.
        joint_loss: its loss, see `training.losses`: "kl" towards the target, "ce" towards the texts.
        rank: rank of the low-rank weights that are trained in the copy; 0 to train all its weights.
        before_tokens: number of tokens that a draft model of `Files.before` must predict for a position to be skipped
            (Col-BT).
        on_policy: share of batches whose texts the draft model writes itself, spread evenly (DistillSpec).
        temperature: temperature of those texts.
        opening: number of tokens of a text to continue, if the length of its prompt is unknown.
        new_tokens: maximum tokens to write.
    """

    steps: int | None = _option(
        None, "steps to train; default: 5 passes over the data, without --minutes", kinds.whole(1)
    )
    minutes: float | None = _option(
        None, "maximum minutes to train; only --steps gives repeatable results", kinds.number(above=True, metavar="M")
    )
    loss: str = _option(
        "kl",
        "ce, kl, rkl, jsd, tvd, top, or a weighted sum as in kl+0.1ce; default: the kind's",
        kinds.name(metavar="LOSS"),
    )
    feature_weight: float = _option(
        0.0,
        "loss weight of the distance between hidden states, for kinds that predict them; with medusa's --joint, of the "
        "model's own loss: 5",
        kinds.number(metavar="W"),
    )
    depth: int = _option(1, "number of drafted tokens to train; default: the kind's", kinds.whole(1, 64))
    depth_from: float = _option(
        0.0,
        "train only the first token until this share of the training; default: 0",
        kinds.number(metavar="SHARE"),
    )
    decay: float = _option(0.8, "loss weights by depth: P^(depth - 1); default: the kind's, 0.8", kinds.FRACTION)
    measured: int = 4
    lr: float = _option(
        1e-3, "learning rate; default: the kind's, about 0.001", kinds.number(above=True, metavar="RATE")
    )
    optimizer: str = _option("adamw", "adamw or muon", kinds.name())
    schedule: str = _option("linear", "learning-rate schedule: linear, cosine or constant", kinds.name())
    warmup: int = _option(50, "warm-up steps of the learning rate", kinds.whole(0))
    weight_decay: float = _option(0.0, "weight decay of matrices; default: 0", kinds.number(metavar="W"))
    clip: float = _option(1.0, "gradient-norm clip; 0 disables", kinds.number(metavar="NORM"))
    texts: int = _option(8, "texts per batch", kinds.whole(1))
    anchors: int = _option(32, "maximum trained positions per text; default: the kind's", kinds.whole(1))
    accumulate: int = _option(1, "batches per step", kinds.whole(1))
    precision: str = _option("float32", "arithmetic: float32 or bfloat16; weights stay float32", kinds.name())
    seed: int = _option(0, "seed of new weights, order and anchors; default: 0", kinds.whole(0))
    evaluate_every: int = _option(
        200, "steps between measurements of held-out acceptance", kinds.whole(1), flag="--evaluate-steps"
    )
    patience: int = _option(0, "stop after this many measurements without gain; default: 0, never", kinds.whole(0))
    held_out: int = _option(128, "texts to measure on, at most a tenth of all", kinds.whole(1))
    keep: str = _option(
        "best",
        "weights to write: the best in greedy decoding on held-out texts (default), or the last",
        kinds.name(metavar="best|last"),
    )
    joint: bool = _joint(
        False,
        "train a copy of the model together with the heads (Medusa-2); the drafts are lossless for that copy",
        kinds.FLAG,
    )
    joint_from: float = _joint(
        0.4, "train only the heads until this share of the training; default: 0.4", kinds.number(metavar="SHARE")
    )
    joint_rate: float = _joint(
        0.25,
        "learning rate of the model, relative to the heads'; default: 0.25",
        kinds.number(above=True, metavar="SHARE"),
    )
    joint_loss: str = _joint(
        "kl", "loss of the model: kl to the original (self-distillation), or as --loss", kinds.name(metavar="LOSS")
    )
    rank: int = _joint(32, "rank of the weights added to the model (LoRA); 0 trains all its weights", kinds.whole(0))
    before_tokens: int = _draft_model(
        1,
        "tokens in a row that a draft model of --before has to predict for a position to be left out; default: 1",
        kinds.whole(1),
    )
    on_policy: float = _draft_model(
        0.0,
        "share of batches whose texts the draft model writes itself (DistillSpec); default: 0",
        kinds.number(metavar="SHARE"),
    )
    temperature: float = _draft_model(
        1.0, "temperature of --on-policy texts; default: 1", kinds.number(above=True, metavar="T")
    )
    opening: int = _draft_model(
        16, "tokens of a text that --on-policy starts from where the data has no prompts", kinds.whole(1)
    )
    new_tokens: int = _draft_model(64, "maximum new tokens of an --on-policy text", kinds.whole(1))

    def __post_init__(self) -> None:
        parse_terms(self.loss)
        parse_terms(self.joint_loss)
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
        if not 0 <= self.joint_from < 1:
            raise UsageError(f"joint_from must be a share from 0 to below 1, not {self.joint_from}.")
        if not 0 < self.joint_rate < math.inf or self.rank < 0:
            raise UsageError("joint_rate must be above 0, and rank 0 or more.")
        if not 0 <= self.on_policy <= 1:
            raise UsageError(f"on_policy must be a share from 0 to 1, not {self.on_policy}.")
        if not 0 < self.temperature < math.inf:
            raise UsageError(f"temperature must be above 0, not {self.temperature}: the draft model samples its texts.")

    def record(self) -> dict[str, Any]:
        """Return the settings for a JSON file."""
        return asdict(self)
