"""Rounding weights to 8 and 4 bits: what it costs, and that nothing depends on how they are read."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import Tensor

from speculant.engines.hf.quantized import rounding
from speculant.engines.hf.quantized.rounding import Scheme, round_weight

SCHEMES: tuple[Scheme, ...] = get_args(Scheme)


def weight(outs: int = 48, k: int = 256, *, seed: int = 0) -> Tensor:
    """Return weights with a few large ones, as models have."""
    torch.manual_seed(seed)
    return torch.randn(outs, k) * (1 + 4 * (torch.rand(outs, k) > 0.99))


def error(found: Tensor, expected: Tensor) -> float:
    """Return the squared error as a share of the squares."""
    return float((found - expected).square().sum() / expected.square().sum())


def test_int8_is_as_good_as_q8_0() -> None:
    """Guards the format: the scales of llama.cpp's Q8_0, as the gguf package writes them, and no more error."""
    quants = pytest.importorskip("gguf.quants")
    types = pytest.importorskip("gguf").GGMLQuantizationType
    plain = weight()
    theirs = torch.from_numpy(quants.dequantize(quants.quantize(plain.numpy(), types.Q8_0), types.Q8_0))
    ours = round_weight(plain, "int8").dequantize()
    largest = plain.reshape(len(plain), -1, 32).abs().argmax(dim=-1, keepdim=True)
    assert torch.equal(*(each.reshape(len(plain), -1, 32).gather(2, largest) for each in (ours, theirs)))
    assert error(ours, plain) <= error(theirs, plain)


def test_int4_is_better_than_q4_1() -> None:
    """Guards the search: less error than from minimum and maximum alone, with the same number of bits or fewer."""
    quants = pytest.importorskip("gguf.quants")
    types = pytest.importorskip("gguf").GGMLQuantizationType
    plain = weight()
    simple = torch.from_numpy(quants.dequantize(quants.quantize(plain.numpy(), types.Q4_1), types.Q4_1))
    packed = round_weight(plain, "int4")
    assert error(packed.dequantize(), plain) < 0.9 * error(simple, plain)
    assert packed.bytes * 8 == 4.625 * plain.numel()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("k", [256, 96, 100, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_sizes_are_rounded(scheme: Scheme, k: int, dtype: torch.dtype) -> None:
    """Guards incomplete groups, padding and dtypes by the error that is left."""
    plain = weight(24, k).to(dtype)
    found = round_weight(plain, scheme).dequantize()
    assert found.shape == plain.shape
    assert error(found, plain.float()) < (1e-4 if scheme == "int8" else 1e-2)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_blocks_of_rows_change_nothing(scheme: Scheme, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards that a matrix may be rounded a few rows at a time."""
    plain = weight()
    whole = round_weight(plain, scheme)
    monkeypatch.setattr(rounding, "_BLOCK", 7 * 256)
    parts = round_weight(plain, scheme)
    for name, part in whole.tensors().items():
        assert torch.equal(part, parts.tensors()[name])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("k", [256, 32])
def test_groups_of_one_number_stay_exact(scheme: Scheme, k: int) -> None:
    """Guards zeros, and groups without any spread."""
    plain = torch.zeros(16, k)
    plain[3] = 0.5
    found = round_weight(plain, scheme).dequantize()
    assert torch.equal(found[0], plain[0])
    torch.testing.assert_close(found[3], plain[3], rtol=1e-3, atol=0)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_what_cannot_be_rounded_is_refused(scheme: Scheme, value: float) -> None:
    """Guards against matrices that are silently nonsense."""
    plain = weight()
    plain[5, 7] = value
    with pytest.raises(ValueError, match="not finite"):
        round_weight(plain, scheme)
