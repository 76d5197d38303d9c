"""Conversion of GGUF matrices directly to the kernels' order, by compiled code if available."""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

from speculant.engines.hf.cpu.build import BuildError
from speculant.engines.hf.quantized.gguf.blocks import byte_table, unpack
from speculant.engines.hf.quantized.gguf.kinds import KINDS, BlockKind, row_bytes
from speculant.engines.hf.quantized.products import native
from speculant.engines.hf.quantized.weight import INPUTS, OUTS, SUPER, GroupScales, QuantizedWeight, pack, pad

ROWS_AT_ONCE = 512  # for the path without compiled code, which needs several bytes per value


def unpack_packed(
    blocks: Tensor,
    kind: str,
    outs: int,
    k: int,
    *,
    order: Tensor | None = None,
    threads: int | None = None,
    compiled: bool = True,
) -> QuantizedWeight:
    """Return `pack(unpack(blocks, kind, outs, k))` without the memory for intermediate results.

    Args:
        blocks: uint8, outs * row_bytes(kind, k) bytes in any shape, contiguous.
        kind: a name of `KINDS`.
        outs, k: the matrix's size; k is a multiple of the kind's inputs.
        order: int64 [outs], the file row for each row of the result; None for the file's order.
        threads: number of threads; None for PyTorch's.
        compiled: False for the PyTorch path, which is also the fallback if no code can be compiled.

    Raises:
        ValueError: the blocks have another size, or the order is not a permutation.
    """
    layout = KINDS[kind]
    if k % layout.inputs or blocks.numel() != outs * row_bytes(kind, k):
        raise ValueError(f"{blocks.numel()} bytes are not a matrix {outs} x {k} of {kind}")
    if blocks.dtype is not torch.uint8 or not blocks.is_cpu or not blocks.is_contiguous():
        raise ValueError(f"blocks must be contiguous bytes on the CPU, not {blocks.dtype} on {blocks.device}")
    if order is not None and not torch.equal(order.sort().values, torch.arange(outs)):
        raise ValueError(f"the order of {len(order)} rows is not a permutation of {outs}")
    weight = _allocate(layout, outs, k)
    library = _library() if compiled else None
    if library is None:
        _pack_in_steps(blocks.reshape(outs, -1), kind, order, weight)
        return weight
    if order is not None:
        order = order.contiguous()
    parts = weight.tensors()
    pointers = [
        None if name not in parts else parts[name].data_ptr()
        for name in ("values", "scales", "scale_factors", "minima", "min_factors")
    ]
    threads = torch.get_num_threads() if threads is None else threads
    first = None if order is None else order.data_ptr()
    if not library.pack_gguf_blocks(layout.code, blocks.data_ptr(), first, outs, k, *pointers, threads):
        raise ValueError(f"the compiled code has no {kind}")
    return weight


@functools.cache
def _library() -> ctypes.CDLL | None:
    """Return the compiled code, or None if it is not available."""
    try:
        return native()
    except BuildError:
        return None


def _allocate(layout: BlockKind, outs: int, k: int) -> QuantizedWeight:
    """Return an uninitialised packed matrix."""
    blocks, padded = pad(outs, OUTS) // OUTS, pad(k, INPUTS)

    def numbers() -> GroupScales:
        factors = None
        if layout.scales is torch.int8:
            factors = torch.empty(blocks, -(-padded // SUPER), OUTS, dtype=torch.float16)
        return GroupScales(
            numbers=torch.empty(blocks, padded // layout.group, OUTS, dtype=layout.scales), factors=factors
        )

    return QuantizedWeight(
        outs=outs,
        k=k,
        bits=layout.bits,
        group=layout.group,
        values=torch.empty(blocks, padded * layout.bits // 32, OUTS, 4, dtype=torch.uint8),
        scales=numbers(),
        minima=numbers() if layout.minima else None,
        offset=layout.offset,
        table=byte_table(layout.table, layout.offset),
        largest=layout.largest,
    )


def _pack_in_steps(rows: Tensor, kind: str, order: Tensor | None, weight: QuantizedWeight) -> None:
    """Fill a packed matrix from blocks [outs, bytes], some rows at a time."""
    parts = weight.tensors()
    for start in range(0, weight.outs, ROWS_AT_ONCE):
        end = min(start + ROWS_AT_ONCE, weight.outs)
        taken = rows[start:end] if order is None else rows[order[start:end]]
        found = pack(unpack(taken, kind, end - start, weight.k)).tensors()
        found.pop("table", None)
        for name, part in found.items():
            parts[name][start // OUTS : start // OUTS + len(part)] = part
