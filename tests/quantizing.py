"""Models whose weights are rounded to 4 or 8 bits, simply: to the nearest, by the largest weight of a group."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from speculant.engines.hf.quantized.experts import expert_weights, is_experts
from speculant.engines.hf.quantized.modules import replace_weights
from speculant.engines.hf.quantized.products import Activations
from speculant.engines.hf.quantized.weight import GroupedValues, GroupScales, QuantizedWeight, pack, pad


def rounded(weight: Tensor, *, bits: int = 8, group: int = 32) -> QuantizedWeight:
    """Return a matrix [outs, k], rounded."""
    outs, k = weight.shape
    room = weight.new_zeros((outs, pad(k, group)), dtype=torch.float32)
    room[:, :k] = weight.detach()
    maximum = (1 << bits - 1) - 1
    scales = (room.view(outs, -1, group).abs().amax(dim=-1) / maximum).clamp(min=1e-8)
    numbers = (room / scales.repeat_interleave(group, dim=1)).round() + (1 << bits - 1)
    values = numbers[:, :k].to(torch.uint8)
    return pack(
        GroupedValues(values=values, bits=bits, group=group, scales=GroupScales(numbers=scales), offset=1 << bits - 1)
    )


def quantized_model(
    model: Any, *, bits: int = 8, group: int = 32, activations: Activations = "int8", but: tuple[str, ...] = ()
) -> Any:
    """Return a copy of a model whose matrices are rounded, but for those of modules with a name in `but`."""
    model = copy.deepcopy(model)
    weights = {
        f"{name}.weight": rounded(module.weight, bits=bits, group=group)
        for name, module in model.named_modules()
        if type(module) in (nn.Linear, nn.Embedding) and not any(each in name for each in but)
    }
    for name, module in model.named_modules():
        if is_experts(module):
            for projection, weight in expert_weights(module).items():
                weights[f"{name}.{projection}"] = rounded(weight, bits=bits, group=group)
    tied = model.config.get_text_config(decoder=True).tie_word_embeddings
    if tied:
        weights.pop("lm_head.weight", None)
    replace_weights(model, weights, activations=activations)
    return model
