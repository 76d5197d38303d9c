"""The layout of quantised matrices."""

from __future__ import annotations

import pytest
import torch

from speculant.engines.hf.quantized.weight import GroupedValues, GroupScales, pack, take_rows


def _matrix(outs: int, k: int, *, bits: int, group: int, kind: torch.dtype, minima: bool, table: bool) -> GroupedValues:
    def scales() -> GroupScales:
        numbers = torch.randn(outs, -(-k // group)) * 20
        factors = torch.rand(outs, k // 256).half() if kind is torch.int8 else None
        return GroupScales(numbers=numbers.to(kind), factors=factors)

    return GroupedValues(
        values=torch.randint(0, 1 << bits, (outs, k), dtype=torch.uint8),
        bits=bits,
        group=group,
        scales=scales(),
        minima=scales() if minima else None,
        offset=1 << bits - 1,
        table=torch.randint(0, 256, (16,), dtype=torch.uint8) if table else None,
    )


@pytest.mark.parametrize(
    ("outs", "k", "bits", "group", "kind", "minima", "table"),
    [
        (40, 172, 8, 32, torch.float16, False, False),
        (16, 256, 8, 16, torch.int8, False, False),
        (33, 512, 4, 32, torch.int8, True, False),
        (17, 128, 4, 128, torch.float32, True, False),
        (64, 96, 4, 32, torch.float32, False, True),
        (5, 7, 8, 64, torch.float16, True, False),
    ],
)
def test_packing_keeps_values(
    outs: int, k: int, bits: int, group: int, kind: torch.dtype, *, minima: bool, table: bool
) -> None:
    """A packed matrix has the values of the plain one, bit for bit, whatever its size."""
    matrix = _matrix(outs, k, bits=bits, group=group, kind=kind, minima=minima, table=table)
    assert torch.equal(pack(matrix).dequantize(), matrix.dequantize())


def test_refuses_what_has_no_layout() -> None:
    """Groups, scales and tables of wrong sizes are refused rather than read past their ends."""
    values, scales = torch.zeros(4, 64, dtype=torch.uint8), GroupScales(numbers=torch.ones(4, 2))
    with pytest.raises(ValueError, match="groups of 24"):
        GroupedValues(values=values, bits=8, group=24, scales=scales)
    with pytest.raises(ValueError, match="scales for a matrix 4 x 64"):
        GroupedValues(values=values, bits=8, group=16, scales=scales)
    with pytest.raises(ValueError, match="a table has 16 bytes"):
        GroupedValues(values=values, bits=8, group=32, scales=scales, table=torch.zeros(16, dtype=torch.uint8))
    with pytest.raises(ValueError, match="a value exceeds 63"):
        GroupedValues(values=values + 64, bits=8, group=32, scales=scales, largest=63)
    with pytest.raises(ValueError, match="with factors"):
        GroupScales(numbers=torch.ones(4, 2, dtype=torch.int8))


@pytest.mark.parametrize("kind", [torch.float32, torch.int8])
def test_rows_of_a_matrix_are_a_matrix(kind: torch.dtype) -> None:
    """Guards projections on some tokens only: rows in any order keep their values."""
    matrix = pack(_matrix(40, 256, bits=4, group=32, kind=kind, minima=True, table=False))
    rows = torch.tensor([33, 2, 2, 39])
    assert torch.equal(take_rows(matrix, rows).dequantize(), matrix.dequantize()[rows])
