"""Rounds weights to 8 or 4 bits, in groups of 32 inputs that share a scale.

| scheme | values | scale | minimum | bits per weight |
|---|---|---|---|---|
| int8 | round(w / scale), -127 to 127 | float16: max abs(w) / 127, as llama.cpp's Q8_0 | none | 8.5 |
| int4 | round((w - minimum) / scale), 0 to 15 | searched | searched | 4.625 or 5 |

For int4, several initial scales are tried, plus the values of the best one; for each, the scale and minimum with the
least squared error follow from its values by linear regression. The best are kept and rounded: to int8 with a float16
factor per 256 inputs if k is a multiple of 256, as in llama.cpp's K formats, else to float16. The values are then
rounded again with them.

Only the weights are read: there is no calibration text. Under int4 some matrices are rounded to int8, as in llama.cpp's
mixed formats: the embedding and output head, which in 4 bits would double the divergence from the float model, and the
value projections of grouped-query attention, which are small and equally sensitive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from speculant.engines.hf.quantized.weight import SUPER, GroupedValues, GroupScales, QuantizedWeight, pack, pad

Scheme = Literal["int8", "int4"]
GROUP = 32
_BLOCK = 1 << 20  # weights rounded at a time, to bound intermediate results
_STEPS = (14.0, 14.75, 15.5, 16.25, 17.0)  # numbers of steps between minimum and maximum to try


def choose_scheme(scheme: Scheme, name: str, weight: Tensor, *, end: bool) -> Scheme:
    """Return the scheme for one matrix of a model.

    Args:
        scheme: scheme of the model.
        name: name of the parameter.
        weight: [outs, k].
        end: whether it is the embedding or the output head.
    """
    outs, k = weight.shape
    return "int8" if end or (name.endswith("v_proj.weight") and outs < k) else scheme


def round_weight(weight: Tensor, scheme: Scheme) -> QuantizedWeight:
    """Round a float matrix and pack it.

    Args:
        weight: [outs, k], any float dtype; read block by block, so it may be mapped from a file.
        scheme: "int8" or "int4".

    Raises:
        ValueError: a weight is not finite, or too large for a float16 scale.
    """
    outs, k = weight.shape
    padded = pad(k, GROUP)
    step = max(1, _BLOCK // padded)
    blocks = []
    for start in range(0, outs, step):
        rows = weight[start : start + step].detach().float()
        if padded != k:  # copies of the last weight change no group's minimum and maximum
            rows = torch.cat((rows, rows[:, -1:].expand(-1, padded - k)), dim=1)
        groups = rows.reshape(len(rows), -1, GROUP)
        blocks.append(_round_int8(groups) if scheme == "int8" else _round_int4(groups, factored=k % SUPER == 0))
    values, scales, minima = zip(*blocks, strict=True)
    return pack(
        GroupedValues(
            values=torch.cat(values).reshape(outs, padded)[:, :k],
            bits=8 if scheme == "int8" else 4,
            group=GROUP,
            scales=_join(scales),
            minima=None if scheme == "int8" else _join(minima),
            offset=128 if scheme == "int8" else 0,
        )
    )


def _round_int8(groups: Tensor) -> tuple[Tensor, GroupScales, GroupScales | None]:
    """Round float32 [outs, groups, 32]; return uint8 values, scales and no minima."""
    scales = _halve(groups.abs().amax(dim=-1) / 127)
    values = torch.round(groups / _divisor(_widen(scales))).clamp_(-127, 127)
    return (values + 128).to(torch.uint8), scales, None


def _round_int4(groups: Tensor, *, factored: bool) -> tuple[Tensor, GroupScales, GroupScales | None]:
    """Round float32 [outs, groups, 32] with the least squared error tried; return uint8 values, scales and minima."""
    low, high = groups.aminmax(dim=-1)
    span, total = (high - low).clamp_min(1e-30), groups.sum(dim=-1)
    above = groups - low[..., None]
    scales, minima, smallest = (high - low) / 15, low, torch.full_like(low, float("inf"))
    for steps in (*_STEPS, None):
        if steps is None:  # refines the best of the others
            values = torch.round((groups - minima[..., None]) / _divisor(scales)).clamp_(0, 15)
        else:
            values = torch.round(above * (steps / span)[..., None]).clamp_(max=15)
        # Least-squares fit of scale * values + minimum to the weights of a group.
        sums, squares = values.sum(dim=-1), values.square().sum(dim=-1)
        spread = GROUP * squares - sums.square()
        scale = (GROUP * (values * groups).sum(dim=-1) - sums * total) / spread.clamp_min(1)
        minimum = (total - scale * sums) / GROUP
        error = (values.mul_(scale[..., None]).add_(minimum[..., None]) - groups).square().sum(dim=-1)
        better = (spread > 0) & (error < smallest)
        smallest = torch.where(better, error, smallest)
        scales, minima = torch.where(better, scale, scales), torch.where(better, minimum, minima)
    shorten = _factor if factored else _halve
    kept, lowest = shorten(scales), shorten(minima)
    values = torch.round((groups - _widen(lowest)[..., None]) / _divisor(_widen(kept))).clamp_(0, 15)
    return values.to(torch.uint8), kept, lowest


def _halve(numbers: Tensor) -> GroupScales:
    """Return float32 [outs, groups] as float16."""
    halved = numbers.half()
    _check_finite(halved)
    return GroupScales(numbers=halved)


def _factor(numbers: Tensor) -> GroupScales:
    """Return float32 [outs, groups] as int8 with a float16 factor per 256 inputs."""
    blocks = numbers.reshape(len(numbers), -1, SUPER // GROUP)
    factors = (blocks.abs().amax(dim=-1) / 127).half()
    _check_finite(factors)
    wide = factors.float()[..., None]
    shares = torch.round(blocks / torch.where(wide == 0, 1.0, wide)).clamp_(-127, 127)
    return GroupScales(numbers=shares.to(torch.int8).reshape(numbers.shape), factors=factors)


def _check_finite(numbers: Tensor) -> None:
    if not numbers.isfinite().all():
        raise ValueError("a weight is not finite, or above what a float16 scale can express")


def _widen(scales: GroupScales) -> Tensor:
    """Return scales as float32 [outs, groups]."""
    wide = scales.numbers.float()
    return wide if scales.factors is None else wide * scales.factors.float().repeat_interleave(SUPER // GROUP, dim=1)


def _divisor(scales: Tensor) -> Tensor:
    """Return the divisors of weights, float32 [outs, groups, 1]; 1 for groups of equal weights."""
    return torch.where(scales == 0, 1.0, scales)[..., None]


def _join(parts: Sequence[GroupScales | None]) -> GroupScales:
    """Concatenate the scales of blocks of rows."""
    numbers = torch.cat([each.numbers for each in parts if each is not None])
    factors = [each.factors for each in parts if each is not None and each.factors is not None]
    return GroupScales(numbers=numbers, factors=torch.cat(factors) if factors else None)
