"""Products with quantised matrices and lookups in them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from speculant.engines.hf.quantized.products import Activations, lookup, multiply, multiply_all
from speculant.engines.hf.quantized.weight import GroupedValues, GroupScales, QuantizedWeight, pack

pytestmark = pytest.mark.usefixtures("compiled")
KINDS = (torch.float32, torch.float16, torch.int8)


def make_weight(
    outs: int, k: int, *, bits: int = 8, group: int = 32, kind: torch.dtype = torch.float16, minima: bool = False
) -> QuantizedWeight:
    """Return a random matrix; 4 bits have a table where there are no minima and the scales are float32."""

    def scales() -> GroupScales:
        numbers = torch.randn(outs, -(-k // group))
        factors = torch.rand(outs, k // 256).half() if kind is torch.int8 else None
        return GroupScales(numbers=(numbers * 20 if factors is not None else numbers).to(kind), factors=factors)

    table = bits == 4 and not minima and kind is torch.float32
    return pack(
        GroupedValues(
            values=torch.randint(0, 1 << bits, (outs, k), dtype=torch.uint8),
            bits=bits,
            group=group,
            scales=scales(),
            minima=scales() if minima else None,
            offset=1 << bits - 1,
            table=torch.randint(0, 256, (16,), dtype=torch.uint8) if table else None,
        )
    )


def round_rows(x: Tensor) -> Tensor:
    """Return rows as the kernels round them: each 32 numbers to bytes with a scale."""
    rows, k = x.shape
    groups = torch.nn.functional.pad(x, (0, -k % 32)).reshape(rows, -1, 32)
    largest = groups.abs().amax(dim=-1, keepdim=True)
    inverse = torch.tensor(127.0) / largest  # 127 / largest would be the rounded reciprocal times 127
    rounded = (groups * inverse).round() * (largest / 127)
    return rounded.reshape(rows, -1)[:, :k].nan_to_num()


@pytest.mark.parametrize("activations", ["int8", "float"])
@pytest.mark.parametrize("minima", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [16, 32, 64, 128])
@pytest.mark.parametrize("bits", [4, 8])
def test_products_of_every_layout(
    bits: int, group: int, kind: torch.dtype, activations: Activations, *, minima: bool
) -> None:
    """Guards every layout against the product with the dequantised matrix."""
    for outs, k in ((33, 512),) if kind is torch.int8 else ((37, 300), (1, 1), (16, 128)):
        weight = make_weight(outs, k, bits=bits, group=group, kind=kind, minima=minima)
        x, bias = torch.randn(5, k), torch.randn(outs)
        rounded = round_rows(x) if activations == "int8" else x
        exact = rounded.double() @ weight.dequantize().double().T + bias
        found = multiply(weight, x, bias, activations)
        torch.testing.assert_close(found.double(), exact, atol=1e-5 * float(exact.abs().max() + 1), rtol=1e-4)
        assert torch.equal(lookup(weight, torch.arange(outs)), weight.dequantize())


def test_no_rows() -> None:
    """Guards empty batches, and shapes of more than two dimensions."""
    weight = make_weight(20, 96)
    assert multiply(weight, torch.zeros(0, 96)).shape == (0, 20)
    assert multiply(weight, torch.zeros(2, 0, 96)).shape == (2, 0, 20)
    assert lookup(weight, torch.zeros(0, dtype=torch.int64)).shape == (0, 96)
    x = torch.randn(2, 3, 96)
    assert torch.equal(multiply(weight, x), multiply(weight, x.view(6, 96)).view(2, 3, 20))


def test_several_products_of_one_input() -> None:
    """Guards matrices of different layouts that share the rounded input."""
    weights = [make_weight(20, 96), make_weight(7, 96, bits=4, minima=True), make_weight(33, 96, group=16)]
    x, biases = torch.randn(3, 96), [torch.randn(20), None, torch.randn(33)]
    for found, weight, bias in zip(multiply_all(weights, x, biases), weights, biases, strict=True):
        assert torch.equal(found, multiply(weight, x, bias))


def test_wrong_arguments_are_refused() -> None:
    """Guards against reading memory as something that it is not."""
    weight = make_weight(8, 64)
    with pytest.raises(ValueError, match=r"float32 on the CPU, not torch.float64"):
        multiply(weight, torch.zeros(2, 64, dtype=torch.float64))
    with pytest.raises(ValueError, match="not contiguous"):
        multiply(weight, torch.zeros(64, 2).T)
    with pytest.raises(ValueError, match=r"shape \(2, 63\)"):
        multiply(weight, torch.zeros(2, 63))
    with pytest.raises(ValueError, match=r"bias has the shape \(9,\)"):
        multiply(weight, torch.zeros(2, 64), torch.zeros(9))
    with pytest.raises(ValueError, match="'int8' or 'float'"):
        multiply(weight, torch.zeros(2, 64), activations="int4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="1 weights with 2 biases"):
        multiply_all([weight], torch.zeros(2, 64), [None, None])
    with pytest.raises(ValueError, match=r"values has the shape \(1, 16, 16, 4\), not \(1, 32, 16, 4\)"):
        multiply(replace(weight, values=weight.values[:, :16].contiguous()), torch.zeros(2, 64))
    turned = GroupScales(numbers=weight.scales.numbers.transpose(1, 2).contiguous().transpose(1, 2))
    with pytest.raises(ValueError, match="scales must be contiguous"):
        lookup(replace(weight, scales=turned), torch.tensor([3]))
    with pytest.raises(IndexError, match="from 3 to 8 for a matrix of 8 rows"):
        lookup(weight, torch.tensor([3, 8]))
    with pytest.raises(ValueError, match="ids must be"):
        lookup(weight, torch.tensor([3], dtype=torch.int32))
