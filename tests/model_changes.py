"""Changes of a loaded model that affect how it computes passes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from models import tiny_model


def gated() -> Any:
    """Return a model with a gate, a flag in a container and a config of its own in one layer."""
    model = tiny_model("llama")
    inner = model.model.layers[0].self_attn
    inner.register_buffer("gate", torch.zeros(1))
    inner.settings, inner.merged_adapters = {"mixes": False}, []
    return model


def own_config(model: Any) -> None:
    inner = model.model.layers[0].self_attn
    inner.config = copy.copy(inner.config)
    inner.config.attention_dropout = 0.5


CHANGES: dict[str, Callable[[Any], object]] = {
    "written in place": lambda model: model.model.layers[0].self_attn.gate.fill_(1.0),
    "written past its version": lambda model: model.model.layers[0].self_attn.gate.data.fill_(1.0),
    "exchanged behind its name": lambda model: setattr(model.model.layers[0].self_attn.gate, "data", torch.ones(1)),
    "written by numpy": lambda model: model.model.layers[0].self_attn.gate.numpy().fill(1.0),
    "a flag in a dict": lambda model: model.model.layers[0].self_attn.settings.update(mixes=True),
    "a method of one module": lambda model: setattr(model.model.norm, "extra_repr", lambda: ""),
    "a config of one module": own_config,
    "a hook": lambda model: model.model.norm.register_forward_hook(lambda *_: None),
    "a weight written in place": lambda model: model.model.norm.weight.detach().add_(1),
    "a weight written past its version": lambda model: model.lm_head.weight.data.mul_(2),
    "a weight exchanged": lambda model: setattr(model.model.norm, "weight", nn.Parameter(torch.ones(32))),
    "a module in a leaf": lambda model: model.model.norm.add_module("adapter", nn.Identity()),
    "a module exchanged": lambda model: setattr(model.model.layers[0].mlp, "act_fn", nn.ReLU()),
    "an adapter merged": lambda model: model.model.layers[0].self_attn.merged_adapters.append("own"),
    "training mode": lambda model: model.model.norm.train(),
    "a setting of the config": lambda model: setattr(model.config, "attention_dropout", 0.5),
    "a class": lambda model: setattr(model.model.norm, "__class__", type("Own", (type(model.model.norm),), {})),
}
