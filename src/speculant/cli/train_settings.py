"""What `speculant train` checks and completes before anything is loaded: texts, options of heads, settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speculant.core.errors import FileError, UsageError
from speculant.options import kinds, option
from speculant.training.kind import TrainingKind
from speculant.training.settings import TrainSettings

ON_POLICY_ONLY = ("temperature", "opening", "new_tokens")
JOINT_ONLY = ("joint_from", "joint_rate", "joint_loss", "rank")
JOINT_DEFAULTS = {"feature_weight": 5.0, "keep": "last"}  # 5 = 1 / lambda_0; the best acceptance would drift furthest
KIND_DEFAULTS = ("loss", "feature_weight", "depth", "decay", "lr", "anchors")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """The texts of a training, and the options of a new head or model."""

    data: tuple[str, ...] = option.option(
        option.REQUIRED,
        "folders of `train data`, .txt or .jsonl files ({text}, {messages}, or {source, target})",
        kinds.name(metavar="PATH..."),
        panel="Files",
        several=True,
    )
    length: int | None = option.option(
        None, "maximum tokens per text; default: the model's positions", kinds.whole(8), panel="Training"
    )
    settings: tuple[str, ...] = option.option(
        (),
        "option of a new head or model; may be repeated; a wrong name lists them",
        kinds.name(metavar="NAME=VALUE"),
        panel="Training",
        flag="--set",
        several=True,
    )


def complete_settings(kind: TrainingKind, given: dict[str, Any]) -> TrainSettings:
    """Return the settings with the defaults of a kind.

    Raises:
        UsageError: a setting would be ignored.
    """
    check_unused(given, ON_POLICY_ONLY, "on_policy", "texts that the draft model writes")
    check_unused(given, JOINT_ONLY, "joint", "the model that is trained together with the heads")
    defaults = {name: getattr(kind, name) for name in KIND_DEFAULTS} | (JOINT_DEFAULTS if given.get("joint") else {})
    return TrainSettings(**(defaults | given))


def check_unused(given: Mapping[str, Any], names: Sequence[str], needed: str, subject: str) -> None:
    """Refuse settings that only apply with another one.

    Raises:
        UsageError: one of `names` is given, and `needed` is not.
    """
    unused = [f"--{name.replace('_', '-')}" for name in names if name in given]
    if unused and not given.get(needed):
        option = f"--{needed.replace('_', '-')}"
        raise UsageError(
            f"{unused[0]} would be ignored without {option}: it applies to {subject}. Add {option}, or leave it out."
        )


def check_data(paths: Sequence[str]) -> None:
    """Check that the files and folders of texts exist, before anything is loaded.

    Raises:
        FileError: one does not.
    """
    for path in paths:
        if not Path(path).exists():
            raise FileError(f"there is no file or folder {path}. `speculant train data` writes a folder of texts.")
