"""Matrices of GGUF files in the order of the kernels."""

from __future__ import annotations

import pytest
import torch

from gguf_bytes import random_blocks
from speculant.engines.hf.quantized.gguf import packing
from speculant.engines.hf.quantized.gguf.blocks import unpack
from speculant.engines.hf.quantized.gguf.kinds import KINDS, packed_bytes
from speculant.engines.hf.quantized.gguf.packing import unpack_packed
from speculant.engines.hf.quantized.products import lookup, multiply
from speculant.engines.hf.quantized.weight import QuantizedWeight, pack

SIZES = [(48, 512), (19, 1024), (5, 96), (33, 352)]


def assert_same(found: QuantizedWeight, expected: QuantizedWeight) -> None:
    """Check that all parts are the same to the last bit, padding included."""
    names = ("outs", "k", "bits", "group", "offset", "largest", "bytes")
    assert all(getattr(found, name) == getattr(expected, name) for name in names)
    ours, theirs = found.tensors(), expected.tensors()
    assert ours.keys() == theirs.keys()
    for name, part in ours.items():
        assert part.dtype is theirs[name].dtype, name
        assert torch.equal(part.view(torch.uint8), theirs[name].view(torch.uint8)), name


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_two_steps(kind: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both paths pack what the readable one does, whatever the size, and take the bytes that are stated."""
    monkeypatch.setattr(packing, "ROWS_AT_ONCE", 16)
    for outs, k in SIZES:
        if k % KINDS[kind].inputs:
            continue
        blocks = random_blocks(kind, outs, k, seed=outs)
        for threads in (1, 2):
            found = unpack_packed(blocks, kind, outs, k, compiled=compiled, threads=threads)
            assert_same(found, pack(unpack(blocks, kind, outs, k)))
            assert found.bytes == packed_bytes(kind, outs, k)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
def test_order_moves_rows(kind: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows stand where the order says, as architectures with permuted rows need."""
    monkeypatch.setattr(packing, "ROWS_AT_ONCE", 16)
    blocks, order = random_blocks(kind, 40, 512), torch.randperm(40, generator=torch.Generator().manual_seed(0))
    found = unpack_packed(blocks, kind, 40, 512, order=order, compiled=compiled)
    assert_same(found, pack(unpack(blocks[order], kind, 40, 512)))


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_read_what_is_packed(kind: str) -> None:
    """Products and lookups see the values of the file, whatever the kind's groups, scales, minima and table."""
    outs, k = 40, 512
    weight = unpack_packed(random_blocks(kind, outs, k, alike=True), kind, outs, k)
    values, x = weight.dequantize(), torch.randn(3, k, generator=torch.Generator().manual_seed(0))
    assert torch.equal(lookup(weight, torch.arange(outs)), values)
    expected = (x.double() @ values.double().T).float()
    torch.testing.assert_close(multiply(weight, x, activations="float"), expected, rtol=1e-4, atol=1e-4)


def test_refuses_wrong_sizes() -> None:
    """Compiled code reads and writes nothing outside of its memory: sizes and orders are checked."""
    blocks = random_blocks("Q8_0", 4, 64)
    with pytest.raises(ValueError, match="not a matrix 5 x 64 of Q8_0"):
        unpack_packed(blocks, "Q8_0", 5, 64)
    with pytest.raises(ValueError, match="contiguous bytes"):
        unpack_packed(torch.zeros(68, 4, dtype=torch.uint8).T, "Q8_0", 4, 64)
    for order in ([0, 1, 2], [0, 1, 2, 4], [0, 0, 1, 2], [-1, 0, 1, 2]):
        with pytest.raises(ValueError, match="not a permutation of 4"):
            unpack_packed(blocks, "Q8_0", 4, 64, order=torch.tensor(order))
