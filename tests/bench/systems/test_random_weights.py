"""Models from a config alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from models import SHAPE
from speculant.bench.systems.random_weights import random_model
from speculant.core.errors import FileError, SpeculantError, UsageError

CONFIG: dict[str, Any] = SHAPE | {"model_type": "llama", "dtype": "bfloat16"}


def test_a_shape(tmp_path: Path) -> None:
    """The file or its folder gives a model of that shape, the same every time, in the dtype that is asked for."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    one, other = random_model(tmp_path, device="cpu"), random_model(tmp_path / "config.json", device="cpu")
    assert one.config.num_hidden_layers == SHAPE["num_hidden_layers"]
    assert one.dtype == torch.float32
    assert torch.equal(one.lm_head.weight, other.lm_head.weight)
    assert random_model(tmp_path, device="cpu", dtype="auto").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (None, FileError, "cannot read"),
        ("{", FileError, "not a config"),
        ('{"model_type": "nothing"}', UsageError, "no causal LM"),
        ('{"model_type": "vit"}', UsageError, "no causal LM"),
        ('{"vocab_size": 3}', UsageError, "no causal LM"),
    ],
)
def test_faults(text: str | None, error: type[SpeculantError], message: str, tmp_path: Path) -> None:
    """What is no config of a causal LM is named."""
    if text is not None:
        (tmp_path / "c.json").write_text(text)
    with pytest.raises(error, match=message):
        random_model(tmp_path / "c.json", device="cpu")


def test_options(tmp_path: Path) -> None:
    """No such dtype, or no single device."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(UsageError, match="no dtype 'float33'"):
        random_model(tmp_path, device="cpu", dtype="float33")
    with pytest.raises(UsageError, match="--device"):
        random_model(tmp_path, device="auto")
