"""Blocks of GGUF files as grouped values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gguf_bytes import random_blocks
from speculant.engines.hf.quantized.gguf.blocks import unpack
from speculant.engines.hf.quantized.gguf.kinds import KINDS
from speculant.engines.hf.quantized.weight import pack


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


def test_sizes_are_checked() -> None:
    """Bytes that are no such matrix are refused rather than misread."""
    with pytest.raises(ValueError, match="not a matrix 4 x 64 of Q8_0"):
        unpack(torch.zeros(135, dtype=torch.uint8), "Q8_0", 4, 64)
    with pytest.raises(ValueError, match="not a matrix 1 x 300 of Q4_K"):
        unpack(torch.zeros(144, dtype=torch.uint8), "Q4_K", 1, 300)
