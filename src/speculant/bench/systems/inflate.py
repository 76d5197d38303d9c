"""Inflates a small real model to the cost of a larger one, with the same outputs.

Layers are added whose attention and MLP write zeros into the residual stream, and MLPs are widened by rows and columns
of zeros. Neither changes any number that reaches the logits, and both are fully computed.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from speculant.core.errors import UnsupportedError, UsageError
from speculant.engines.hf.quantized.modules import quantized_modules

FAMILIES = ("llama", "qwen2", "qwen3", "mistral")


def inflate(model: Any, *, layers: int = 0, mlp: int | None = None) -> Any:
    """Return a copy of a model that costs more and has the same outputs.

    Args:
        model: a causal LM of the Llama family: `model.model.layers`, each with `self_attn.o_proj` and an `mlp` of
            `gate_proj`, `up_proj` and `down_proj`.
        layers: the number of layers; 0 for the model's own.
        mlp: the MLPs' intermediate size; None for the model's own.

    Raises:
        UnsupportedError: the model is of another family, or quantised.
        UsageError: it has more layers, or wider MLPs, than requested.
    """
    check_inflation(model.config, layers=layers, mlp=mlp)
    if any(True for _ in quantized_modules(model)):
        raise UnsupportedError("a model with quantised weights cannot be inflated; inflate it before it is quantised.")
    inflated = copy.deepcopy(model)
    _widen(inflated, mlp or model.config.intermediate_size)
    _deepen(inflated, layers or model.config.num_hidden_layers)
    return inflated.eval()


def check_inflation(config: Any, *, layers: int = 0, mlp: int | None = None) -> None:
    """Check by a model's config that it can be inflated, before its weights are loaded; see `inflate`.

    Raises:
        UnsupportedError, UsageError: as `inflate`.
    """
    if config.model_type not in FAMILIES:
        raise UnsupportedError(
            f"a {config.model_type} model cannot be inflated; these can: {', '.join(FAMILIES)}. "
            "Or time a shape with random weights: --forced TRACES --config FILE."
        )
    layers, width = layers or config.num_hidden_layers, mlp or config.intermediate_size
    if layers < config.num_hidden_layers or width < config.intermediate_size:
        raise UsageError(
            f"the model has {config.num_hidden_layers} layers and MLPs of {config.intermediate_size}; it can be "
            f"inflated, not cut to {layers} layers and {width}."
        )


def _widen(model: Any, width: int) -> None:
    extra = width - model.config.intermediate_size
    for layer in model.model.layers:
        mlp = layer.mlp
        for projection, rows, columns in (
            (mlp.gate_proj, extra, 0),
            (mlp.up_proj, extra, 0),
            (mlp.down_proj, 0, extra),
        ):
            projection.weight = nn.Parameter(nn.functional.pad(projection.weight.data, (0, columns, 0, rows)))
            if projection.bias is not None:
                projection.bias = nn.Parameter(nn.functional.pad(projection.bias.data, (0, rows)))
            projection.out_features += rows
            projection.in_features += columns
        mlp.intermediate_size = width
    model.config.intermediate_size = width


def _deepen(model: Any, layers: int) -> None:
    blocks, config = model.model.layers, model.config
    kinds = list(getattr(config, "layer_types", None) or [])
    for number in range(config.num_hidden_layers, layers):
        block = copy.deepcopy(blocks[-1])
        block.self_attn.layer_idx = number  # its place in the cache
        with torch.no_grad():
            for writer in (block.self_attn.o_proj, block.mlp.down_proj):
                for parameter in writer.parameters():
                    parameter.zero_()
        blocks.append(block)
        if kinds:
            kinds.append(kinds[-1])
    if kinds:
        config.layer_types = kinds
    config.num_hidden_layers = layers
