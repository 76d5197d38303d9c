"""Models for the compiled code of decoder layers, and comparisons with the layers themselves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from models import deep_model
from speculant.engines.hf.cache import usable_cache
from speculant.engines.hf.cpu.accelerate import CpuAcceleration, prepare_model

IDS = torch.tensor([[5, 9, 14, 3, 8, 5, 9, 14], [3, 8, 5, 9, 2, 7, 1, 4]])


def model_of(name: str, **changes: Any) -> Any:
    """Return a model whose norms and biases are not what they are in the beginning, ones and zeros."""
    model = deep_model(name, **changes)
    torch.manual_seed(3)
    for each, weight in model.named_parameters():
        if "norm" in each or "bias" in each:
            nn.init.uniform_(weight, 0.3, 1.7)
    return model


@torch.inference_mode()
def output(
    model: Any,
    *,
    rows: int = 8,
    batch: int = 1,
    fast: bool = True,
    prepared: CpuAcceleration | None = None,
    own: bool = True,
) -> Tensor:
    """Return the hidden states of so many rows behind four cached ones; in our cache or theirs."""
    cache = usable_cache(None) if own else DynamicCache()
    model(IDS[:batch, :4], past_key_values=cache)
    prepared = prepared or prepare_model(model, True)
    run = prepared.model_for(model, rows) if fast else model
    hidden: Tensor = run.model(IDS[:batch].repeat(1, 20)[:, :rows], past_key_values=cache).last_hidden_state
    return hidden


def agreed(model: Any, prepared: CpuAcceleration) -> None:
    """Check that a prepared model returns what the model itself returns."""
    torch.testing.assert_close(output(model, prepared=prepared), output(model, fast=False), atol=2e-5, rtol=2e-5)
