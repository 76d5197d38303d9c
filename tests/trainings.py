"""Small targets, texts and trainings of tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from models import deep_model
from speculant.engines.hf.views.target_parts import HFTargetParts
from speculant.training.batches import Groups
from speculant.training.features import Features
from speculant.training.files import Files
from speculant.training.fingerprint import TargetIdentity, identify
from speculant.training.kinds import find_kind
from speculant.training.reading import TrainData
from speculant.training.run import train_head
from speculant.training.settings import TrainSettings
from speculant.training.texts import Texts, from_parts

LAST = (-1,)


def tiny_texts(count: int = 12, *, seed: int = 0, prompts: int = 0) -> Texts:
    """Return random texts of 12 to 30 tokens."""
    generator = np.random.default_rng(seed)
    parts = [generator.integers(3, 61, generator.integers(12, 31)).astype(np.int32) for _ in range(count)]
    return from_parts(parts, [prompts] * count)


def tiny_data(texts: Texts | None = None) -> TrainData:
    """Return texts as `read_data` does."""
    return TrainData(texts or tiny_texts(), ("random (12 texts)",), ())


def tiny_features(model: Any, texts: Texts, *, taps: tuple[int, ...] = LAST, depth: int = 2, size: int = 4) -> Features:
    """Return the features of texts in groups."""
    groups = Groups(texts, size=size, anchors=5, depth=depth, seed=0)
    return Features(model, HFTargetParts(model), groups, taps)


def tiny_identity(model: Any) -> TargetIdentity:
    """Return the fingerprints of a model without a tokenizer."""
    return identify(model, None, name="tiny", source="tiny")


def tiny_settings(**changes: Any) -> TrainSettings:
    """Return the settings of a training of a second."""
    fields: dict[str, Any] = {
        "steps": 6,
        "loss": "kl",
        "feature_weight": 1.0,
        "texts": 4,
        "anchors": 5,
        "warmup": 2,
        "evaluate_every": 2,
        "held_out": 2,
        "lr": 3e-3,
    }
    return TrainSettings(**fields | changes)


def tiny_training(
    out: Path,
    *,
    kind: str = "eagle",
    model: Any = None,
    data: TrainData | None = None,
    files: dict[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Any] | None:
    """Train a head or draft model for a tiny model into a folder; return its figures."""
    model = model or deep_model("llama")
    return train_head(
        find_kind(kind),
        model,
        data or tiny_data(),
        tiny_identity(model),
        tiny_settings(**changes),
        Files(out=out, **files or {}),
    )


def sharp_model(**changes: Any) -> Any:
    """Return a tiny target whose distributions are far from flat, so that there is something to learn."""
    model = deep_model("llama", **changes)
    with torch.no_grad():
        model.lm_head.weight.mul_(8)
    return model
