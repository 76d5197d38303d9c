"""Queries about a model that may have quantised weights: their number, and the precision of its passes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.quantized.modules import QuantizedLinear, quantized_modules


def expand_weights(model: nn.Module) -> nn.Module:
    """Replace quantised linear layers by ordinary ones with the same weights; return the changed module.

    Raises:
        UnsupportedError: a module of another kind holds quantised weights.
    """
    for name, module in [*quantized_modules(model)]:
        if not isinstance(module, QuantizedLinear):
            raise UnsupportedError(f"{name} is a {type(module).__name__}, which cannot be expanded.")
        with torch.device("meta"):
            linear = nn.Linear(module.in_features, module.out_features, bias=False, dtype=module.dtype)
        linear.weight = nn.Parameter(module.dequantize())
        linear.register_parameter("bias", module.bias)
        parent, _, place = name.rpartition(".")
        model.get_submodule(parent)._modules[place] = linear.train(module.training)
    return model


def count_weights(model: nn.Module) -> int:
    """Return the number of a model's weights, including quantised ones; shared weights count once."""
    matrices = {id(each): each for _, module in quantized_modules(model) for each in module.matrices.values()}
    return sum(weight.numel() for weight in model.parameters()) + sum(w.outs * w.k for w in matrices.values())


def count_bytes(model: nn.Module) -> int:
    """Return how many bytes a model's weights take, quantised ones included; those that modules share count once."""
    matrices = {id(each): each for _, module in quantized_modules(model) for each in module.matrices.values()}
    floats = {weight.data_ptr(): weight for weight in (*model.parameters(), *model.buffers())}
    return sum(each.nbytes for each in floats.values()) + sum(each.bytes for each in matrices.values())


def rounding_dtype(model: Any) -> torch.dtype:
    """Return the dtype with a rounding error like the model's: bfloat16 if products round their inputs to 8 bits.

    If one input is rounded the other way, because an operation before a product is computed in another order, the
    logits change by about as much as in bfloat16 passes.
    """
    rounds = (getattr(module, "activations", None) == "int8" for _, module in quantized_modules(model))
    dtype: torch.dtype = model.dtype
    return torch.bfloat16 if dtype is torch.float32 and any(rounds) else dtype
