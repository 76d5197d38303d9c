"""Quantised blocks of GGUF files as grouped values, without rounding again.

A row of a matrix is stored as blocks of 32 or 256 inputs, each with its own scales. Every kind in `KINDS` fits one of
the two layouts of `weight.py` exactly: the dequantised values are those of ggml and of the package `gguf`, bit for bit.

| kind | inputs per block | values here | scales | minima | bits per weight: file | here |
|---|---|---|---|---|---|---|
| Q8_0 | 32 | 8 bits - 128 | float16 per 32 | | 8.5 | 8.5 |
| Q4_0 | 32 | 4 bits - 8 | float16 per 32 | | 4.5 | 4.5 |
| Q4_1 | 32 | 4 bits | float16 per 32 | float16 | 5 | 5 |
| Q5_0 | 32 | 8 bits - 16 | float16 per 32 | | 5.5 | 8.5 |
| Q5_1 | 32 | 8 bits | float16 per 32 | float16 | 6 | 9 |
| IQ4_NL | 32 | 4 bits, table - 128 | float16 per 32 | | 4.5 | 4.5 |
| MXFP4 | 32 | 4 bits, table - 12 | float32 per 32 | | 4.25 | 5 |
| Q2_K | 256 | 4 bits | int8 per 16 | int8 | 2.625 | 5.125 |
| Q3_K | 256 | 4 bits - 4 | int8 per 16 | | 3.4375 | 4.5625 |
| Q4_K | 256 | 4 bits | int8 per 32 | int8 | 4.5 | 4.625 |
| Q5_K | 256 | 8 bits | int8 per 32 | int8 | 5.5 | 8.625 |
| Q6_K | 256 | 8 bits - 32 | int8 per 16 | | 6.5625 | 8.5625 |
| IQ4_XS | 256 | 4 bits, table - 128 | int8 per 32 | | 4.25 | 4.3125 |

int8 scales and minima have a float16 factor per 256 inputs. Minima of the K kinds are subtracted in the file, so their
factors are negated here. Powers of two of MXFP4 exceed float16 and become float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from speculant.engines.hf.quantized.weight import INPUTS, OUTS, SUPER, GroupedValues, GroupScales, pad

E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the values of 4-bit floats
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # kvalues_iq4nl of ggml


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockKind:
    """How a kind of GGUF tensor is stored, and how it is held here.

    Attributes:
        code: ggml's number of the kind.
        inputs: of a block.
        size: of a block, in bytes.
        bits, group, offset: of the values here; see `GroupedValues`.
        scales: dtype of the scales and minima.
        minima: whether there are any.
        table: what 4-bit values stand for; empty for themselves.
    """

    code: int
    inputs: int
    size: int
    bits: int
    group: int
    offset: int = 0
    scales: torch.dtype = torch.float16
    minima: bool = False
    table: tuple[int, ...] = ()


KINDS = MappingProxyType(
    {
        "Q4_0": BlockKind(code=2, inputs=32, size=18, bits=4, group=32, offset=8),
        "Q4_1": BlockKind(code=3, inputs=32, size=20, bits=4, group=32, minima=True),
        "Q5_0": BlockKind(code=6, inputs=32, size=22, bits=8, group=32, offset=16),
        "Q5_1": BlockKind(code=7, inputs=32, size=24, bits=8, group=32, minima=True),
        "Q8_0": BlockKind(code=8, inputs=32, size=34, bits=8, group=32, offset=128),
        "Q2_K": BlockKind(code=10, inputs=256, size=84, bits=4, group=16, scales=torch.int8, minima=True),
        "Q3_K": BlockKind(code=11, inputs=256, size=110, bits=4, group=16, offset=4, scales=torch.int8),
        "Q4_K": BlockKind(code=12, inputs=256, size=144, bits=4, group=32, scales=torch.int8, minima=True),
        "Q5_K": BlockKind(code=13, inputs=256, size=176, bits=8, group=32, scales=torch.int8, minima=True),
        "Q6_K": BlockKind(code=14, inputs=256, size=210, bits=8, group=16, offset=32, scales=torch.int8),
        "IQ4_NL": BlockKind(code=20, inputs=32, size=18, bits=4, group=32, offset=128, table=IQ4),
        "IQ4_XS": BlockKind(
            code=23, inputs=256, size=136, bits=4, group=32, offset=128, scales=torch.int8, table=IQ4
        ),
        "MXFP4": BlockKind(
            code=39, inputs=32, size=17, bits=4, group=32, offset=12, scales=torch.float32, table=E2M1
        ),
    }
)  # fmt: skip
UNREADABLE = MappingProxyType(  # kinds of other files, by ggml's number, to refuse them by name
    {
        4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
        21: "IQ3_S", 22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 31: "Q4_0_4_4",
        32: "Q4_0_4_8", 33: "Q4_0_8_8", 34: "TQ1_0", 35: "TQ2_0", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8",
        40: "NVFP4", 41: "Q1_0",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """Values [outs, blocks, inputs], scales and minima [outs, blocks, groups], their factors [outs, blocks, 1]."""

    values: Tensor
    scales: Tensor
    factors: Tensor | None = None
    minima: Tensor | None = None
    min_factors: Tensor | None = None


def row_bytes(kind: str, k: int) -> int:
    """Return the bytes of a row of k inputs in the file."""
    return k // KINDS[kind].inputs * KINDS[kind].size


def packed_bytes(kind: str, outs: int, k: int) -> int:
    """Return the bytes that a matrix [outs, k] of a kind takes in memory, padding included."""
    layout, padded = KINDS[kind], pad(k, INPUTS)
    of_a_row = padded * layout.bits // 8
    for _ in range(1 + layout.minima):
        of_a_row += -(-padded // layout.group) * layout.scales.itemsize
        of_a_row += -(-padded // SUPER) * torch.float16.itemsize * (layout.scales is torch.int8)
    return pad(outs, OUTS) * of_a_row + len(layout.table)


def unpack(blocks: Tensor, kind: str, outs: int, k: int) -> GroupedValues:
    """Return a matrix of a GGUF file as grouped values.

    Args:
        blocks: uint8, outs * row_bytes(kind, k) bytes in any shape.
        kind: a name of `KINDS`.
        outs, k: the matrix's size; k is a multiple of the kind's inputs.
    """
    layout = KINDS[kind]
    if k % layout.inputs or blocks.numel() != outs * row_bytes(kind, k):
        raise ValueError(f"{blocks.numel()} bytes are no matrix {outs} x {k} of {kind}")
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
    )


def byte_table(values: tuple[int, ...], offset: int) -> Tensor | None:
    """Return a table of signed values as the bytes that `GroupedValues` keeps; None of an empty one."""
    return torch.tensor([value + offset for value in values], dtype=torch.uint8) if values else None


def split_bytes(part: Tensor, bits: int, run: int) -> Tensor:
    """Return the fields of bytes [..., n], uint8 [..., n * 8 / bits], lowest bits first.

    Of each run of `run` bytes, the first fields of all bytes come first, then the second ones, and so on.
    """
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)[:, None]
    fields = part.reshape(*part.shape[:-1], -1, 1, run) >> shifts & (1 << bits) - 1
    return fields.reshape(*part.shape[:-1], -1)


def powers_of_two(exponents: Tensor) -> Tensor:
    """Return 2^(e - 128) of bytes e, float32: the scales E8M0 of microscaling formats, halved, as ggml has them."""
    return torch.tensor([2.0 ** (exponent - 128) for exponent in range(256)])[exponents.int()]


def _half(blocks: Tensor, at: int) -> Tensor:
    return blocks[..., at : at + 2].contiguous().view(torch.float16)


def _q4_0(blocks: Tensor) -> _Parts:
    return _Parts(split_bytes(blocks[..., 2:], 4, 16), _half(blocks, 0))


def _q4_1(blocks: Tensor) -> _Parts:
    return _Parts(split_bytes(blocks[..., 4:], 4, 16), _half(blocks, 0), minima=_half(blocks, 2))


def _five_bits(blocks: Tensor, at: int, run: int) -> Tensor:
    """Return values of 5 bits from the rest of the blocks: first all fifth bits, then the lower four of each."""
    end = at + (blocks.shape[-1] - at) // 5
    fifth = split_bytes(blocks[..., at:end], 1, 1 if run == 16 else run)
    return split_bytes(blocks[..., end:], 4, run) | fifth << 4


def _q5_0(blocks: Tensor) -> _Parts:
    return _Parts(_five_bits(blocks, 2, 16), _half(blocks, 0))


def _q5_1(blocks: Tensor) -> _Parts:
    return _Parts(_five_bits(blocks, 4, 16), _half(blocks, 0), minima=_half(blocks, 2))


def _q8_0(blocks: Tensor) -> _Parts:
    return _Parts(blocks[..., 2:] ^ 128, _half(blocks, 0))


def _mxfp4(blocks: Tensor) -> _Parts:
    return _Parts(split_bytes(blocks[..., 1:], 4, 16), powers_of_two(blocks[..., :1]))


def _q2_k(blocks: Tensor) -> _Parts:
    scales, values = blocks[..., :16], split_bytes(blocks[..., 16:80], 2, 32)
    return _Parts(values, (scales & 15).to(torch.int8), _half(blocks, 80), (scales >> 4).to(torch.int8),
                  -_half(blocks, 82))  # fmt: skip


def _q3_k(blocks: Tensor) -> _Parts:
    values = split_bytes(blocks[..., 32:96], 2, 32) | split_bytes(blocks[..., :32], 1, 32) << 2
    # 16 scales of 6 bits: their low halves in 8 bytes, their high bits in 4
    scales = split_bytes(blocks[..., 96:104], 4, 8) | split_bytes(blocks[..., 104:108], 2, 4) << 4
    return _Parts(values, scales.to(torch.int8) - 32, _half(blocks, 108))


def _six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the 8 scales and 8 minima of Q4_K and Q5_K, int8 [..., 8] each, from their 12 bytes."""
    first, second, low = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = torch.cat((first & 63, low & 15 | first >> 2 & 48), dim=-1)
    minima = torch.cat((second & 63, low >> 4 | second >> 2 & 48), dim=-1)
    return scales.to(torch.int8), minima.to(torch.int8)


def _q4_k(blocks: Tensor) -> _Parts:
    scales, minima = _six_bits(blocks[..., 4:16])
    return _Parts(split_bytes(blocks[..., 16:], 4, 32), scales, _half(blocks, 0), minima, -_half(blocks, 2))


def _q5_k(blocks: Tensor) -> _Parts:
    scales, minima = _six_bits(blocks[..., 4:16])
    return _Parts(_five_bits(blocks, 16, 32), scales, _half(blocks, 0), minima, -_half(blocks, 2))


def _q6_k(blocks: Tensor) -> _Parts:
    values = split_bytes(blocks[..., :128], 4, 64) | split_bytes(blocks[..., 128:192], 2, 32) << 4
    return _Parts(values, blocks[..., 192:208].contiguous().view(torch.int8), _half(blocks, 208))


def _iq4_xs(blocks: Tensor) -> _Parts:
    scales = split_bytes(blocks[..., 4:8], 4, 1) | split_bytes(blocks[..., 2:4], 2, 1) << 4
    return _Parts(split_bytes(blocks[..., 8:], 4, 16), scales.to(torch.int8) - 32, _half(blocks, 0))


_READERS: MappingProxyType[str, Callable[[Tensor], _Parts]] = MappingProxyType(
    {
        "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0, "Q2_K": _q2_k, "Q3_K": _q3_k,
        "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "IQ4_NL": _q4_0, "IQ4_XS": _iq4_xs, "MXFP4": _mxfp4,
    }
)  # fmt: skip
