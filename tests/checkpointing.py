"""Checkpoints of heads, changed after they were written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file


def rewrite(folder: Path, change: Mapping[str, Any]) -> None:
    """Change a folder's config and weights.

    Args:
        folder: with config.json and model.safetensors.
        change: "drop" names a tensor, "add" a tensor and its shape, "put" a tensor and its value, "config" values of
            the config, None for none.
    """
    tensors, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    if "drop" in change:
        del tensors[change["drop"]]
    if "add" in change:
        name, shape = change["add"]
        tensors[name] = torch.zeros(shape)
    if "put" in change:
        name, value = change["put"]
        tensors[name] = value
    for name, value in change.get("config", {}).items():
        config[name] = value
        if value is None:
            del config[name]
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
