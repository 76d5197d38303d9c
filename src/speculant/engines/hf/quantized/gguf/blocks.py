"""Conversion of quantised GGUF blocks to grouped values, without requantisation.

The kinds are listed in `kinds.py`. Dequantised values are those of ggml and of the package `gguf`, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from speculant.engines.hf.quantized.gguf.kinds import KINDS, row_bytes
from speculant.engines.hf.quantized.weight import GroupedValues, GroupScales


@dataclass(frozen=True, slots=True, eq=False)
class _BlockParts:
    """Values [outs, blocks, inputs], scales and minima [outs, blocks, groups], their factors [outs, blocks, 1]."""

    values: Tensor
    scales: Tensor
    factors: Tensor | None = None
    minima: Tensor | None = None
    min_factors: Tensor | None = None


def unpack(blocks: Tensor, kind: str, outs: int, k: int) -> GroupedValues:
    """Return a matrix of a GGUF file as grouped values.

    Args:
        blocks: uint8, outs * row_bytes(kind, k) bytes in any shape.
        kind: a name of `KINDS`.
        outs, k: the matrix's size; k is a multiple of the kind's inputs.
    """
    layout = KINDS[kind]
    if k % layout.inputs or blocks.numel() != outs * row_bytes(kind, k):
        raise ValueError(f"{blocks.numel()} bytes are not a matrix {outs} x {k} of {kind}")
    parts = _READERS[kind](blocks.reshape(outs, k // layout.inputs, layout.size))

    def by_rows(numbers: Tensor, factors: Tensor | None) -> GroupScales:
        found = None if factors is None else factors.reshape(outs, -1)
        return GroupScales(numbers=numbers.reshape(outs, -1), factors=found)

    return GroupedValues(
        values=parts.values.reshape(outs, k),
        bits=layout.bits,
        group=layout.group,
        scales=by_rows(parts.scales, parts.factors),
        minima=None if parts.minima is None else by_rows(parts.minima, parts.min_factors),
        offset=layout.offset,
        table=byte_table(layout.table, layout.offset),
        largest=layout.largest,
    )


def byte_table(values: tuple[int, ...], offset: int) -> Tensor | None:
    """Return a table of signed values as the bytes that `GroupedValues` stores; None for an empty one."""
    return torch.tensor([value + offset for value in values], dtype=torch.uint8) if values else None


def split_bytes(part: Tensor, bits: int, run: int) -> Tensor:
    """Return the fields of bytes [..., n], uint8 [..., n * 8 / bits], lowest bits first.

    In each run of `run` bytes, the first fields of all bytes come first, then the second ones, and so on.
    """
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)[:, None]
    fields = part.reshape(*part.shape[:-1], -1, 1, run) >> shifts & (1 << bits) - 1
    return fields.reshape(*part.shape[:-1], -1)


def powers_of_two(exponents: Tensor) -> Tensor:
    """Return 2^(e - 128) of bytes e, float32: the E8M0 scales of microscaling formats, halved, as in ggml."""
    return torch.tensor([2.0 ** (exponent - 128) for exponent in range(256)])[exponents.int()]


def _half(blocks: Tensor, at: int) -> Tensor:
    return blocks[..., at : at + 2].contiguous().view(torch.float16)


def _q4_0(blocks: Tensor) -> _BlockParts:
    return _BlockParts(split_bytes(blocks[..., 2:], 4, 16), _half(blocks, 0))


def _q4_1(blocks: Tensor) -> _BlockParts:
    return _BlockParts(split_bytes(blocks[..., 4:], 4, 16), _half(blocks, 0), minima=_half(blocks, 2))


def _five_bits(blocks: Tensor, at: int, run: int) -> Tensor:
    """Return 5-bit values from the rest of the blocks: first all fifth bits, then the lower four of each."""
    end = at + (blocks.shape[-1] - at) // 5
    fifth = split_bytes(blocks[..., at:end], 1, 1 if run == 16 else run)
    return split_bytes(blocks[..., end:], 4, run) | fifth << 4


def _q5_0(blocks: Tensor) -> _BlockParts:
    return _BlockParts(_five_bits(blocks, 2, 16), _half(blocks, 0))


def _q5_1(blocks: Tensor) -> _BlockParts:
    return _BlockParts(_five_bits(blocks, 4, 16), _half(blocks, 0), minima=_half(blocks, 2))


def _q8_0(blocks: Tensor) -> _BlockParts:
    return _BlockParts(blocks[..., 2:] ^ 128, _half(blocks, 0))


def _mxfp4(blocks: Tensor) -> _BlockParts:
    return _BlockParts(split_bytes(blocks[..., 1:], 4, 16), powers_of_two(blocks[..., :1]))


def _q2_k(blocks: Tensor) -> _BlockParts:
    scales, values = blocks[..., :16], split_bytes(blocks[..., 16:80], 2, 32)
    return _BlockParts(values, (scales & 15).to(torch.int8), _half(blocks, 80), (scales >> 4).to(torch.int8),
                  -_half(blocks, 82))  # fmt: skip


def _q3_k(blocks: Tensor) -> _BlockParts:
    values = split_bytes(blocks[..., 32:96], 2, 32) | split_bytes(blocks[..., :32], 1, 32) << 2
    # 16 scales of 6 bits: the low halves in 8 bytes, the high bits in 4
    scales = split_bytes(blocks[..., 96:104], 4, 8) | split_bytes(blocks[..., 104:108], 2, 4) << 4
    return _BlockParts(values, scales.to(torch.int8) - 32, _half(blocks, 108))


def _six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the 8 scales and 8 minima of Q4_K and Q5_K, int8 [..., 8] each, from their 12 bytes."""
    first, second, low = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = torch.cat((first & 63, low & 15 | first >> 2 & 48), dim=-1)
    minima = torch.cat((second & 63, low >> 4 | second >> 2 & 48), dim=-1)
    return scales.to(torch.int8), minima.to(torch.int8)


def _q4_k(blocks: Tensor) -> _BlockParts:
    scales, minima = _six_bits(blocks[..., 4:16])
    return _BlockParts(split_bytes(blocks[..., 16:], 4, 32), scales, _half(blocks, 0), minima, -_half(blocks, 2))


def _q5_k(blocks: Tensor) -> _BlockParts:
    scales, minima = _six_bits(blocks[..., 4:16])
    return _BlockParts(_five_bits(blocks, 16, 32), scales, _half(blocks, 0), minima, -_half(blocks, 2))


def _q6_k(blocks: Tensor) -> _BlockParts:
    values = split_bytes(blocks[..., :128], 4, 64) | split_bytes(blocks[..., 128:192], 2, 32) << 4
    return _BlockParts(values, blocks[..., 192:208].contiguous().view(torch.int8), _half(blocks, 208))


def _iq4_xs(blocks: Tensor) -> _BlockParts:
    scales = split_bytes(blocks[..., 4:8], 4, 1) | split_bytes(blocks[..., 2:4], 2, 1) << 4
    return _BlockParts(split_bytes(blocks[..., 8:], 4, 16), scales.to(torch.int8) - 32, _half(blocks, 0))


_READERS: MappingProxyType[str, Callable[[Tensor], _BlockParts]] = MappingProxyType(
    {
        "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0, "Q2_K": _q2_k, "Q3_K": _q3_k,
        "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "IQ4_NL": _q4_0, "IQ4_XS": _iq4_xs, "MXFP4": _mxfp4,
    }
)  # fmt: skip
