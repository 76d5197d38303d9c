"""Joins experts that a checkpoint packs one by one into matrices of all experts of a layer."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.quantized.weight import OUTS, GroupScales, QuantizedWeight

_PROJECTIONS = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}  # Mixtral's names -> the common names
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)\.weight")


def join_experts(weights: Mapping[str, QuantizedWeight]) -> dict[str, QuantizedWeight]:
    """Return packed matrices, with a layer's experts joined: `x.experts.3.up_proj.weight` into `x.experts.up_proj`.

    Raises:
        UnsupportedError: experts of a layer are packed in different formats.
    """
    found, experts = dict[str, QuantizedWeight](), defaultdict[str, dict[int, QuantizedWeight]](dict)
    for name, weight in weights.items():
        match = _EXPERT.fullmatch(name)
        if match is None:
            found[name] = weight
        else:
            path, number, projection = match.groups()
            experts[f"{path}.{_PROJECTIONS.get(projection, projection)}"][int(number)] = weight
    for name, each in experts.items():
        found[name] = _join(name, [each[number] for number in sorted(each)])
    return found


def _join(name: str, weights: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """Concatenate the rows of several matrices."""
    first = weights[0]
    kinds = {(each.outs, each.k, each.bits, each.group, each.offset, each.minima is None) for each in weights}
    if len(kinds) > 1 or first.outs % OUTS or first.table is not None:
        raise UnsupportedError(
            f"{name}: the experts of this layer are packed in different ways, or not by {OUTS} outputs, which is not "
            "supported."
        )

    def join(parts: Sequence[GroupScales | None]) -> GroupScales | None:
        numbers = [each.numbers for each in parts if each is not None]
        return GroupScales(numbers=torch.cat(_alike(numbers))) if numbers else None

    scales = join([each.scales for each in weights])
    assert scales is not None
    return replace(
        first,
        outs=first.outs * len(weights),
        values=torch.cat([each.values for each in weights]),
        scales=scales,
        minima=join([each.minima for each in weights]),
    )


def _alike(numbers: Sequence[Tensor]) -> list[Tensor]:
    """Return scales in a common dtype, float32 if any of them has it."""
    dtype = torch.float32 if any(each.dtype is torch.float32 for each in numbers) else numbers[0].dtype
    return [each.to(dtype) for each in numbers]
