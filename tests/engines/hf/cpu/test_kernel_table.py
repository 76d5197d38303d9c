"""Kernel tables: the fastest kernel counts, PyTorch's own in doubt, packed weights only where they save enough."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from speculant.engines.hf.cpu.kernel_table import MAX_ROWS, ROW_COUNTS, KernelTable, choose, shapes_to_pack
from speculant.engines.hf.cpu.products import Products, pack

SHAPE = (8, 4)


def times(**seconds: float) -> dict[Any, list[float]]:
    """Return the same seconds for every number of rows."""
    return {kernel: [each] * len(ROW_COUNTS) for kernel, each in seconds.items()}


def test_torch_is_kept_unless_another_is_clearly_faster() -> None:
    """Guards noise: what is about as fast changes nothing."""
    assert choose(times(torch=1.0, compiled=0.98), 8, packed=True) == "torch"
    assert choose(times(torch=1.0, compiled=0.9), 8, packed=True) == "compiled"
    assert choose(times(torch=1.0, compiled=0.9, packed=0.85), 8, packed=True) == "compiled"
    assert choose(times(torch=1.0, compiled=0.9, packed=0.7), 8, packed=True) == "packed"
    assert choose(times(torch=1.0, compiled=0.9, packed=0.7), 8, packed=False) == "compiled"


def test_prompts_get_kernels_for_many_rows() -> None:
    """Guards long passes: kernels for few rows are left out beyond what was measured."""
    seconds = times(torch=1.0, compiled=0.2, widened=0.5)
    assert choose(seconds, MAX_ROWS, packed=False) == "compiled"
    assert choose(seconds, MAX_ROWS + 1, packed=False) == "widened"


def test_the_nearest_number_of_rows_counts() -> None:
    """Guards drafts between two numbers that were measured."""
    seconds = times(torch=1.0, compiled=2.0)
    seconds["compiled"][ROW_COUNTS.index(16)] = 0.5
    assert [choose(seconds, rows, packed=False) for rows in (11, 12, 16, 22, 23)] == [
        "torch", "compiled", "compiled", "compiled", "torch",
    ]  # fmt: skip


def test_packing_must_save_a_tenth_of_all_products() -> None:
    """Guards memory: a gain in a small part of a pass is not enough."""
    large, small = times(torch=1.0, packed=1.0), times(torch=0.1, packed=0.05)
    assert not shapes_to_pack({(9, 9): large, SHAPE: small}, {(9, 9): 1, SHAPE: 1})
    assert shapes_to_pack({(9, 9): large, SHAPE: small}, {(9, 9): 1, SHAPE: 20}) == {SHAPE}


def test_a_layer_is_one_call_where_that_is_about_as_fast(compiled: Any) -> None:
    """Guards plain decoding: single kernels that are a little faster do not take a layer apart."""
    products = Products(compiled)
    for seconds, expected in ((0.52, "compiled"), (0.9, None)):
        table = KernelTable(products=products, dtype=torch.float32, times={SHAPE: times(torch=0.5, compiled=seconds)})
        assert table.one_call(torch.float32, [SHAPE, (1, 1)], 4) == expected
        assert table.kernel(torch.bfloat16, SHAPE, 4) == "compiled"  # not measured


def test_many_rows_are_one_call_with_the_same_bits(compiled: Any) -> None:
    """Guards large batches: up to the kernel's limit, a draft row beside 64 texts costs no more than others."""
    products = Products(compiled)
    table, most = KernelTable(products=products), products.max_rows(torch.float32)
    assert most <= MAX_ROWS
    assert [table.one_call(torch.float32, [SHAPE], rows) for rows in (most, most + 1)] == ["compiled", None]
    weight, x = torch.randn(70, 96), torch.randn(MAX_ROWS, 96)
    whole = products.multiply("compiled", x, weight, None)
    for rows in (1, 2, 5, 64, 65, 130):
        assert torch.equal(products.multiply("compiled", x[:rows], weight, None), whole[:rows])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_kernel_gives_the_same_product(dtype: torch.dtype, compiled: Any) -> None:
    """Guards all kernels that run here against the exact product, with and without a bias."""
    products = Products(compiled)
    weight, bias, x = (torch.randn(size).to(dtype) for size in ((61, 96), (61,), (2, 9, 96)))
    exact = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    kernels = products.available(dtype)
    assert kernels[:2] == ("torch", "compiled")
    for kernel in kernels:
        packed = pack(weight, 16) if kernel == "packed" else None
        found = products.multiply(kernel, x, weight, bias, packed)
        assert found.dtype is dtype
        torch.testing.assert_close(found.double(), exact, atol=0.1 if dtype is torch.bfloat16 else 1e-4, rtol=0.01)
        torch.testing.assert_close(
            products.multiply(kernel, x, weight, None, packed).double(), exact - bias.double(), atol=0.1, rtol=0.01
        )
