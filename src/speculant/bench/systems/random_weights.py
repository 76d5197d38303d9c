"""Creates a model with random weights from a config, to measure the cost of a shape without its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from speculant.api.loading import default_device
from speculant.core.errors import FileError, OutOfMemoryError, UsageError


def random_model(
    path: Path, *, dtype: str | None = None, device: str | None = None, attention: str | None = None
) -> Any:
    """Return a causal LM of a config's shape.

    Args:
        path: config.json, or its folder.
        dtype: the name of a torch dtype or "auto" for the config's; None for float32 on a CPU, the config's elsewhere.
        device: a torch device; None for an accelerator if there is one.
        attention: transformers' attn_implementation; None for its default.

    Raises:
        FileError: the config cannot be read.
        UsageError: it does not describe a causal LM of transformers, or there is no such dtype.
        OutOfMemoryError: the model does not fit.
    """
    file, config = config_file(path), read_shape(path)
    device = device or default_device()
    if device == "auto":
        raise UsageError("a model from a config is made on one device: name it by --device.")
    try:
        chosen = _dtype(dtype or ("float32" if device == "cpu" else "auto"), config)
        torch.manual_seed(0)
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(config, dtype=chosen, attn_implementation=attention)
    except torch.OutOfMemoryError as error:
        raise OutOfMemoryError(f"the model of {file} does not fit on {device}. Use a smaller dtype.") from error
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{file} describes no causal LM that transformers can make: {error}.") from error
    return model.eval()


def read_shape(path: Path) -> Any:
    """Return the config of a shape.

    Args:
        path: config.json, or its folder.

    Raises:
        FileError: it cannot be read.
        UsageError: it does not describe a model of transformers.
    """
    file = config_file(path)
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"cannot read {file}: {error.strerror}.") from error
    except ValueError as error:
        raise FileError(f"{file} is not a config.json: {error}.") from error
    try:
        return AutoConfig.for_model(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{file} describes no causal LM that transformers can make: {error}.") from error


def config_file(path: Path) -> Path:
    """Return the config file, given its path or its folder."""
    return path / "config.json" if path.is_dir() else path


def _dtype(name: str, config: Any) -> torch.dtype:
    found = (config.dtype or torch.float32) if name == "auto" else getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise UsageError(f"there is no dtype '{name}'; try float32, bfloat16, float16 or auto.")
    return found
