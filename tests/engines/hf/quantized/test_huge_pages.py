"""Packed matrices on huge pages."""

from __future__ import annotations

import gc

import pytest
import torch

from speculant.engines.hf.quantized import huge_pages
from speculant.engines.hf.quantized.huge_pages import LINE, HugePages
from speculant.engines.hf.quantized.weight import GroupedValues, GroupScales, pack


def test_matrices_keep_their_values() -> None:
    """Guards copies: equal parts at starts of cache lines, which outlive the object that made them."""
    scales = GroupScales(
        numbers=torch.randint(-9, 9, (33, 16), dtype=torch.int8), factors=torch.rand(33, 2, dtype=torch.float16)
    )
    values = torch.randint(0, 16, (33, 512), dtype=torch.uint8)
    weight = pack(GroupedValues(values=values, bits=4, group=32, scales=scales, minima=scales, offset=8))
    pages = HugePages(chunk=10_000)
    placed = [pages.place(weight) for _ in range(3)]
    del pages
    gc.collect()
    torch.empty(1_000_000).fill_(7)
    for each in placed:
        assert torch.equal(each.dequantize(), weight.dequantize())
        assert each.bytes == weight.bytes
        for name, part in each.tensors().items():
            assert part.data_ptr() % LINE == 0
            assert torch.equal(part, weight.tensors()[name])


def test_systems_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards other systems: ordinary memory where the advice is unknown or refused."""
    monkeypatch.delattr(huge_pages.mmap, "MADV_HUGEPAGE", raising=False)
    assert HugePages().empty((3, 5), torch.float16).shape == (3, 5)
    monkeypatch.setattr(huge_pages.mmap, "MADV_HUGEPAGE", 9999, raising=False)
    assert HugePages().copy(torch.arange(5)).tolist() == [0, 1, 2, 3, 4]
    assert HugePages().empty((0, 5), torch.float32).shape == (0, 5)
