"""Blocks of GGUF files as grouped values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from speculant.engines.hf.quantized import gguf_blocks
from speculant.engines.hf.quantized.gguf_blocks import KINDS, UNREADABLE, packed_bytes, row_bytes, unpack
from speculant.engines.hf.quantized.weight import pack

# Where the float16 numbers of a block stand; MXFP4 has none.
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2),
          "Q6_K": (208,), "MXFP4": ()}  # fmt: skip


def random_blocks(kind: str, outs: int, k: int, seed: int = 0) -> Tensor:
    """Return blocks of random bytes, of which every pattern is valid, with finite scales."""
    generator = torch.Generator().manual_seed(seed)
    layout = KINDS[kind]
    blocks = torch.randint(0, 256, (outs, k // layout.inputs, layout.size), dtype=torch.uint8, generator=generator)
    for at in HALVES.get(kind, (0,)):
        high = blocks[..., at + 1]
        high[(high & 124) == 124] ^= 64  # exponents of 31 are infinities and NaN
    return blocks.reshape(outs, -1)


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_of_the_file(kind: str) -> None:
    """No kind is rounded again: the values are those of the package `gguf`, bit for bit, zeros' signs included."""
    gguf = pytest.importorskip("gguf")
    outs, k = 19, 1024
    blocks = random_blocks(kind, outs, k)
    with np.errstate(over="ignore"):  # the largest of the powers of two that MXFP4 can hold
        expected = torch.from_numpy(gguf.quants.dequantize(blocks.numpy(), gguf.GGMLQuantizationType[kind]))
    found = unpack(blocks, kind, outs, k)
    assert found.dequantize().shape == (outs, k)
    assert torch.equal(found.dequantize().view(torch.int32), expected.view(torch.int32))
    assert torch.equal(pack(found).dequantize().view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("kind", KINDS)
def test_bits_per_weight_are_as_stated(kind: str) -> None:
    """The table in the docstring, from which users are told the RAM, has the bytes that matrices take."""
    outs, k = 32, 512
    matrix = pack(unpack(random_blocks(kind, outs, k), kind, outs, k))
    assert packed_bytes(kind, outs, k) == matrix.bytes
    rows = [
        line.strip("| ").split("|")
        for line in (gguf_blocks.__doc__ or "").splitlines()
        if line.startswith(f"| {kind} |")
    ]
    in_file, here = (float(cell) for cell in rows[0][-2:])
    assert in_file == row_bytes(kind, k) * 8 / k
    assert here == (matrix.bytes - len(KINDS[kind].table)) * 8 / (outs * k)


def test_padding_counts() -> None:
    """Bytes stated for sizes that are no multiples of the layout's are those taken."""
    assert packed_bytes("Q4_K", 17, 256) == pack(unpack(random_blocks("Q4_K", 17, 256), "Q4_K", 17, 256)).bytes
    assert packed_bytes("Q8_0", 5, 96) == pack(unpack(random_blocks("Q8_0", 5, 96), "Q8_0", 5, 96)).bytes


def test_sizes_are_checked() -> None:
    """Bytes that are no such matrix are refused rather than misread."""
    with pytest.raises(ValueError, match="no matrix 4 x 64 of Q8_0"):
        unpack(torch.zeros(135, dtype=torch.uint8), "Q8_0", 4, 64)
    with pytest.raises(ValueError, match="no matrix 1 x 300 of Q4_K"):
        unpack(torch.zeros(144, dtype=torch.uint8), "Q4_K", 1, 300)


def test_codes_are_those_of_the_package() -> None:
    """Every kind that the package knows is read or refused by its own name, with its own sizes."""
    gguf = pytest.importorskip("gguf")
    known = {kind.code: name for name, kind in KINDS.items()} | {0: "F32", 1: "F16", 30: "BF16"}
    assert not known.keys() & UNREADABLE.keys()
    known |= UNREADABLE
    for code in gguf.GGMLQuantizationType:
        assert known[code.value] == code.name
        if code.name in KINDS:
            assert gguf.GGML_QUANT_SIZES[code] == (KINDS[code.name].inputs, KINDS[code.name].size)
