"""The kinds of tensors in GGUF files."""

from __future__ import annotations

import pytest
import torch

from speculant.engines.hf.quantized.gguf import kinds
from speculant.engines.hf.quantized.gguf.blocks import unpack
from speculant.engines.hf.quantized.gguf.kinds import KINDS, REMOVED, block_sizes, packed_bytes, row_bytes
from speculant.engines.hf.quantized.weight import QuantizedWeight, pack


def zeros(kind: str, outs: int, k: int) -> QuantizedWeight:
    """Return a packed matrix of zero bytes."""
    return pack(unpack(torch.zeros(outs, row_bytes(kind, k), dtype=torch.uint8), kind, outs, k))


@pytest.mark.parametrize("kind", KINDS)
def test_bits_per_weight_are_as_stated(kind: str) -> None:
    """The table in the docstring, from which users are told the RAM, has the bytes that matrices take."""
    outs, k = 32, 512
    matrix = zeros(kind, outs, k)
    assert packed_bytes(kind, outs, k) == matrix.bytes
    rows = [
        line.strip("| ").split("|") for line in (kinds.__doc__ or "").splitlines() if line.startswith(f"| {kind} |")
    ]
    in_file, here = (float(cell) for cell in rows[0][-2:])
    assert in_file == row_bytes(kind, k) * 8 / k
    assert here == (matrix.bytes - len(KINDS[kind].table)) * 8 / (outs * k)


def test_padding_counts() -> None:
    """Bytes stated for sizes that are no multiples of the layout's are those taken."""
    assert packed_bytes("Q4_K", 17, 256) == zeros("Q4_K", 17, 256).bytes
    assert packed_bytes("Q8_0", 5, 96) == zeros("Q8_0", 5, 96).bytes


def test_codes_are_those_of_the_package() -> None:
    """Every kind that the package knows is read or refused by its own name, with its own sizes."""
    gguf = pytest.importorskip("gguf")
    known = block_sizes()
    assert not known.keys() & REMOVED.keys()
    for code in gguf.GGMLQuantizationType:
        assert known[code.value] == (code.name, *gguf.GGML_QUANT_SIZES[code]), code.name
