"""A quantised matrix: integers of 4 or 8 bits with a scale, and optionally a minimum, per group of inputs.

    value[n, i] = scale[n, g] * (u - offset) + minimum[n, g],   u = table[q[n, i]] or q[n, i],   g = i // group

Both layouts represent the common formats (GGUF's, GPTQ, AWQ, compressed-tensors, torchao, MXFP4) exactly.
`GroupedValues` is a matrix row by row, as the format readers return it; `QuantizedWeight` is the same matrix in the
kernels' order:

| part | shape | order |
|---|---|---|
| 8 bits | [outs / 16, k / 4, 16, 4] | 64 bytes: four inputs of each of 16 outputs, for byte dot products |
| 4 bits | [outs / 16, k / 8, 16, 4] | 64 bytes: inputs 8j to 8j + 3 in the low halves, the next four in the high ones |
| scales, minima | [outs / 16, k / group, 16] | float32, float16, or int8 times a float16 factor per 256 inputs |

outs is padded to a multiple of 16 and k to one of 128, with values that have no effect.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace

import torch
from torch import Tensor

OUTS, INPUTS, SUPER = 16, 128, 256
GROUPS = (16, 32, 64, 128)
_KINDS = {torch.float32: 0, torch.float16: 1, torch.int8: 2}


class QuantizedArguments(ctypes.Structure):
    """The struct `Quantized` of quantized.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("values", "scales", "scale_factors", "minima", "min_factors", "table")),
        *((name, ctypes.c_int64) for name in ("outs", "k", "padded")),
        *((name, ctypes.c_int32) for name in ("bits", "group", "offset", "scale_kind", "min_kind", "largest")),
    )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GroupScales:
    """A number per group and output.

    Attributes:
        numbers: [outs, groups], or [blocks, groups, 16] in a packed matrix; float32, float16 or int8.
        factors: float16 [outs, k / 256] or [blocks, k / 256, 16], which multiply int8 numbers; None for floats.
    """

    numbers: Tensor
    factors: Tensor | None = None

    def __post_init__(self) -> None:
        if self.numbers.dtype not in _KINDS or (self.numbers.dtype is torch.int8) != (self.factors is not None):
            raise ValueError(f"scales are float32, float16, or int8 with factors, not {self.numbers.dtype}")
        if self.factors is not None and self.factors.dtype is not torch.float16:
            raise ValueError(f"factors are float16, not {self.factors.dtype}")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GroupedValues:
    """A quantised matrix in row order.

    Attributes:
        values: q, uint8 [outs, k], one per byte even for 4 bits.
        bits: 4 or 8.
        group: number of inputs that share a scale: 16, 32, 64 or 128.
        scales: one per group; the last group of a row may be incomplete.
        minima: the same, or None for zeros.
        offset: subtracted from a value before it is scaled.
        table: uint8 [16], values that 4-bit codes encode; None for the codes themselves.
        largest: no 8-bit value exceeds this; some kernels multiply values below 64 faster.
    """

    values: Tensor
    bits: int
    group: int
    scales: GroupScales
    minima: GroupScales | None = None
    offset: int = 0
    table: Tensor | None = None
    largest: int = 255

    def __post_init__(self) -> None:
        outs, k = self.values.shape
        if self.bits not in (4, 8) or self.group not in GROUPS or self.values.dtype is not torch.uint8:
            raise ValueError(f"no layout for {self.bits} bits of {self.values.dtype} in groups of {self.group}")
        table = self.table
        if table is not None and (self.bits != 4 or table.shape != (16,) or table.dtype is not torch.uint8):
            raise ValueError("a table has 16 bytes and belongs to values of 4 bits")
        if self.largest < 255 and self.values.numel() and int(self.values.max()) > self.largest:
            raise ValueError(f"a value exceeds {self.largest}")
        for each in (self.scales, self.minima):
            if each is None:
                continue
            if each.numbers.shape != (outs, -(-k // self.group)):
                raise ValueError(f"{tuple(each.numbers.shape)} scales for a matrix {outs} x {k}")
            if each.factors is not None and (k % SUPER or each.factors.shape != (outs, k // SUPER)):
                raise ValueError(f"{tuple(each.factors.shape)} factors for a matrix {outs} x {k}")

    def dequantize(self) -> Tensor:
        """Return the matrix, float32 [outs, k]."""
        values = self.values if self.table is None else self.table[self.values.long()]
        k = values.shape[1]
        wide = (values.float() - self.offset) * _spread(self.scales, self.group, k)
        return wide if self.minima is None else wide + _spread(self.minima, self.group, k)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class QuantizedWeight:
    """A quantised matrix in the kernels' order; see `GroupedValues` for the attributes.

    Attributes:
        outs, k: the matrix's size, without padding.
    """

    outs: int
    k: int
    bits: int
    group: int
    values: Tensor
    scales: GroupScales
    minima: GroupScales | None = None
    offset: int = 0
    table: Tensor | None = None
    largest: int = 255

    @property
    def bytes(self) -> int:
        """The number of bytes that a pass reads."""
        return sum(each.numel() * each.element_size() for each in self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        """Return all parts by their names in files."""
        parts = {
            "values": self.values,
            "scales": self.scales.numbers,
            "scale_factors": self.scales.factors,
            "minima": None if self.minima is None else self.minima.numbers,
            "min_factors": None if self.minima is None else self.minima.factors,
            "table": self.table,
        }
        return {name: part for name, part in parts.items() if part is not None}

    def arguments(self) -> QuantizedArguments:
        """Return the struct for the compiled code; its pointers are valid as long as this object."""
        found = QuantizedArguments(outs=self.outs, k=self.k, padded=pad(self.k, INPUTS))
        for name, part in self.tensors().items():
            setattr(found, name, part.data_ptr())
        found.bits, found.group, found.offset, found.largest = self.bits, self.group, self.offset, self.largest
        found.scale_kind = _KINDS[self.scales.numbers.dtype]
        found.min_kind = 0 if self.minima is None else _KINDS[self.minima.numbers.dtype]
        return found

    def dequantize(self) -> Tensor:
        """Return the matrix, float32 [outs, k]."""
        return self.unpack().dequantize()

    def unpack(self) -> GroupedValues:
        """Return the matrix in row order."""
        blocks, padded = self.values.shape[0], pad(self.k, INPUTS)
        if self.bits == 4:
            halves = torch.stack((self.values & 15, self.values >> 4), dim=2)  # [blocks, k / 8, 2, 16, 4]
            values = halves.permute(0, 3, 1, 2, 4)
        else:
            values = self.values.permute(0, 2, 1, 3)
        return GroupedValues(
            values=values.reshape(blocks * OUTS, padded)[: self.outs, : self.k],
            bits=self.bits,
            group=self.group,
            scales=self._unpack(self.scales),
            minima=None if self.minima is None else self._unpack(self.minima),
            offset=self.offset,
            table=self.table,
            largest=self.largest,
        )

    def _unpack(self, scales: GroupScales) -> GroupScales:
        def by_rows(part: Tensor, size: int) -> Tensor:
            return part.transpose(1, 2).reshape(-1, part.shape[1])[: self.outs, : -(-self.k // size)]

        factors = None if scales.factors is None else by_rows(scales.factors, SUPER)
        return GroupScales(numbers=by_rows(scales.numbers, self.group), factors=factors)


def pack(matrix: GroupedValues) -> QuantizedWeight:
    """Return a matrix in the kernels' order."""
    outs, k = matrix.values.shape
    blocks, padded = pad(outs, OUTS) // OUTS, pad(k, INPUTS)
    values = matrix.values.new_zeros((blocks * OUTS, padded))
    values[:outs, :k] = matrix.values
    if matrix.bits == 4:
        halves = values.reshape(blocks, OUTS, padded // 8, 2, 4).permute(3, 0, 2, 1, 4)
        ordered = (halves[0] | halves[1] << 4).contiguous()
    else:
        ordered = values.reshape(blocks, OUTS, padded // 4, 4).transpose(1, 2).contiguous()

    def by_blocks(part: Tensor, size: int) -> Tensor:
        room = part.new_zeros((blocks * OUTS, -(-padded // size)))
        room[:outs, : part.shape[1]] = part
        return room.reshape(blocks, OUTS, -1).transpose(1, 2).contiguous()

    def pack_scales(scales: GroupScales) -> GroupScales:
        factors = None if scales.factors is None else by_blocks(scales.factors, SUPER)
        return GroupScales(numbers=by_blocks(scales.numbers, matrix.group), factors=factors)

    return QuantizedWeight(
        outs=outs,
        k=k,
        bits=matrix.bits,
        group=matrix.group,
        values=ordered,
        scales=pack_scales(matrix.scales),
        minima=None if matrix.minima is None else pack_scales(matrix.minima),
        offset=matrix.offset,
        table=matrix.table,
        largest=matrix.largest,
    )


def take_rows(matrix: QuantizedWeight, rows: Tensor) -> QuantizedWeight:
    """Return the matrix of some rows of another one, Int64[n] in any order, packed again."""

    def take_scales(scales: GroupScales) -> GroupScales:
        return GroupScales(
            numbers=scales.numbers[rows], factors=None if scales.factors is None else scales.factors[rows]
        )

    plain = matrix.unpack()
    minima = None if plain.minima is None else take_scales(plain.minima)
    return pack(replace(plain, values=plain.values[rows], scales=take_scales(plain.scales), minima=minima))


def pad(size: int, multiple: int) -> int:
    """Round a size up to a multiple."""
    return -(-size // multiple) * multiple


def _spread(scales: GroupScales, group: int, k: int) -> Tensor:
    """Return the scale of each input, float32 [outs, k]."""
    numbers = scales.numbers.float()
    if scales.factors is not None:
        numbers = numbers * scales.factors.float().repeat_interleave(SUPER // group, dim=1)
    return numbers.repeat_interleave(group, dim=1)[:, :k]
