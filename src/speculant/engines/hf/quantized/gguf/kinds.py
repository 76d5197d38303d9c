"""The kinds of tensors in GGUF files: their storage there, and their layout here.

A row of a matrix is stored as blocks of 32 or 256 inputs, each with its own scales. Every kind in `KINDS` fits one of
the two layouts of `weight.py` exactly: the dequantised values are those of ggml and of the package `gguf`, bit for bit.

| kind | inputs per block | values here | scales | minima | bits per weight: file | here |
|---|---|---|---|---|---|---|
| Q8_0 | 32 | 8 bits - 128 | float16 per 32 | | 8.5 | 8.5 |
| Q4_0 | 32 | 4 bits - 8 | float16 per 32 | | 4.5 | 4.5 |
| Q4_1 | 32 | 4 bits | float16 per 32 | float16 | 5 | 5 |
| Q5_0 | 32 | 8 bits - 16 | float16 per 32 | | 5.5 | 8.5 |
| Q5_1 | 32 | 8 bits | float16 per 32 | float16 | 6 | 9 |
| IQ4_NL | 32 | 4 bits, table - 128 | float16 per 32 | | 4.5 | 4.5 |
| MXFP4 | 32 | 4 bits, table - 12 | float32 per 32 | | 4.25 | 5 |
| Q2_K | 256 | 4 bits | int8 per 16 | int8 | 2.625 | 5.125 |
| Q3_K | 256 | 4 bits - 4 | int8 per 16 | | 3.4375 | 4.5625 |
| Q4_K | 256 | 4 bits | int8 per 32 | int8 | 4.5 | 4.625 |
| Q5_K | 256 | 8 bits | int8 per 32 | int8 | 5.5 | 8.625 |
| Q6_K | 256 | 8 bits - 32 | int8 per 16 | | 6.5625 | 8.5625 |
| IQ4_XS | 256 | 4 bits, table - 128 | int8 per 32 | | 4.25 | 4.3125 |

int8 scales and minima have a float16 factor per 256 inputs. GGUF subtracts the minima of K kinds, so their factors are
negated here. MXFP4's powers of two exceed float16 and become float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import torch

from speculant.engines.hf.quantized.weight import INPUTS, OUTS, SUPER, pad

E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the values of 4-bit floats
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # kvalues_iq4nl of ggml


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockKind:
    """The storage of a kind of GGUF tensor in files, and its layout here.

    Attributes:
        code: ggml's number of the kind.
        inputs: inputs per block.
        size: bytes per block.
        bits, group, offset, largest: layout of the values here; see `GroupedValues`.
        scales: dtype of the scales and minima.
        minima: whether there are minima.
        table: values that 4-bit codes encode; empty for the codes themselves.
    """

    code: int
    inputs: int
    size: int
    bits: int
    group: int
    offset: int = 0
    scales: torch.dtype = torch.float16
    minima: bool = False
    table: tuple[int, ...] = ()
    largest: int = 255


KINDS = MappingProxyType(
    {
        "Q4_0": BlockKind(code=2, inputs=32, size=18, bits=4, group=32, offset=8),
        "Q4_1": BlockKind(code=3, inputs=32, size=20, bits=4, group=32, minima=True),
        "Q5_0": BlockKind(code=6, inputs=32, size=22, bits=8, group=32, offset=16, largest=31),
        "Q5_1": BlockKind(code=7, inputs=32, size=24, bits=8, group=32, minima=True, largest=31),
        "Q8_0": BlockKind(code=8, inputs=32, size=34, bits=8, group=32, offset=128),
        "Q2_K": BlockKind(code=10, inputs=256, size=84, bits=4, group=16, scales=torch.int8, minima=True),
        "Q3_K": BlockKind(code=11, inputs=256, size=110, bits=4, group=16, offset=4, scales=torch.int8),
        "Q4_K": BlockKind(code=12, inputs=256, size=144, bits=4, group=32, scales=torch.int8, minima=True),
        "Q5_K": BlockKind(
            code=13, inputs=256, size=176, bits=8, group=32, scales=torch.int8, minima=True, largest=31
        ),
        "Q6_K": BlockKind(code=14, inputs=256, size=210, bits=8, group=16, offset=32, scales=torch.int8, largest=63),
        "IQ4_NL": BlockKind(code=20, inputs=32, size=18, bits=4, group=32, offset=128, table=IQ4),
        "IQ4_XS": BlockKind(
            code=23, inputs=256, size=136, bits=4, group=32, offset=128, scales=torch.int8, table=IQ4
        ),
        "MXFP4": BlockKind(
            code=39, inputs=32, size=17, bits=4, group=32, offset=12, scales=torch.float32, table=E2M1
        ),
    }
)  # fmt: skip
FLOATS = MappingProxyType({"F32": (0, torch.float32), "F16": (1, torch.float16), "BF16": (30, torch.bfloat16)})
UNREADABLE = MappingProxyType(  # name: ggml's number, inputs and bytes of a block; no layout here supports these
    {
        "Q8_1": (9, 32, 40), "Q8_K": (15, 256, 292), "IQ1_S": (19, 256, 50), "IQ1_M": (29, 256, 56),
        "IQ2_XXS": (16, 256, 66), "IQ2_XS": (17, 256, 74), "IQ2_S": (22, 256, 82), "IQ3_XXS": (18, 256, 98),
        "IQ3_S": (21, 256, 110), "TQ1_0": (34, 256, 54), "TQ2_0": (35, 256, 66), "NVFP4": (40, 64, 36),
        "Q1_0": (41, 128, 18), "I8": (24, 1, 1), "I16": (25, 1, 2), "I32": (26, 1, 4), "I64": (27, 1, 8),
        "F64": (28, 1, 8),
    }
)  # fmt: skip
REMOVED = MappingProxyType(  # by ggml's number: kinds that ggml itself no longer reads
    {
        4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8",
        38: "IQ4_NL_8_8",
    }
)  # fmt: skip


def block_sizes() -> dict[int, tuple[str, int, int]]:
    """Return name, inputs per block and bytes per block of every known kind, by ggml's number."""
    found = {layout.code: (name, layout.inputs, layout.size) for name, layout in KINDS.items()}
    found |= {code: (name, 1, dtype.itemsize) for name, (code, dtype) in FLOATS.items()}
    return found | {code: (name, inputs, size) for name, (code, inputs, size) in UNREADABLE.items()}


def row_bytes(kind: str, k: int) -> int:
    """Return the bytes of a row of k inputs in the file."""
    return k // KINDS[kind].inputs * KINDS[kind].size


def packed_bytes(kind: str, outs: int, k: int) -> int:
    """Return the bytes of a matrix [outs, k] of a kind in memory, including padding."""
    layout, padded = KINDS[kind], pad(k, INPUTS)
    of_a_row = padded * layout.bits // 8
    for _ in range(1 + layout.minima):
        of_a_row += -(-padded // layout.group) * layout.scales.itemsize
        of_a_row += -(-padded // SUPER) * torch.float16.itemsize * (layout.scales is torch.int8)
    return pad(outs, OUTS) * of_a_row + len(layout.table)
