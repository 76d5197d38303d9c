"""AWQ (Lin et al. 2023, arXiv 2306.00978), as AutoAWQ writes it for its GEMM kernels: 4 bits.

| tensor | dtype and shape | holds |
|---|---|---|
| qweight | int32 [k, outs / 8] | values, packed along the outputs |
| qzeros | int32 [groups, outs / 8] | zero points, packed in the same way |
| scales | float16 [groups, outs] | |

The eight integers of a word belong to outputs 0, 2, 4, 6, 1, 3, 5, 7 of the group of eight, lowest bits first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.quantized.checkpoint_files import CheckpointFiles
from speculant.engines.hf.quantized.checkpoints.matrix import PackedMatrix, find_group, group_values, unpack_words

_LAYOUTS = ("gemm", "exllama", "ipex")  # the latter are other kernels for the same file layout
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # places of outputs 0 to 7 in a word


def read_awq(files: CheckpointFiles, settings: Mapping[str, Any]) -> Iterator[PackedMatrix]:
    """Yield the matrices of an AWQ checkpoint; see `Reader`."""
    layout = str(settings.get("version") or settings.get("checkpoint_format") or "gemm").lower()
    bits = int(settings.get("bits") or settings.get("w_bit") or 4)
    if layout not in _LAYOUTS or bits != 4:
        raise UnsupportedError(f"AWQ's layout {layout!r} with {bits} bits is not supported; only gemm with 4 is.")
    for tensor in files:
        base, _, part = tensor.rpartition(".")
        if part != "qweight":
            continue
        names = tuple(f"{base}.{each}" for each in ("qweight", "qzeros", "scales"))
        words, zeros, scales = map(files.read, names)
        yield PackedMatrix(
            name=f"{base}.weight",
            values=group_values(
                base,
                unpack_words(words, 4, order=_PLACES).t().contiguous(),
                scales.t(),
                bits=4,
                group=find_group(len(words), len(scales), settings.get("group_size"), settings.get("q_group_size")),
                zeros=unpack_words(zeros, 4, order=_PLACES).t(),
            ),
            tensors=names,
        )
