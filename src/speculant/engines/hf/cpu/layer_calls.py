"""Calls of the compiled code that compute whole decoder layers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from speculant.engines.hf.cpu.batch_rows import AppendedRows


class CallArguments(ctypes.Structure):
    """The struct `LayerCall` of layer.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("layer", "positions", "attention")),
        ("sequences", ctypes.c_int64),
        ("y", ctypes.c_void_p),
    )


@dataclass(slots=True, eq=False)
class LayerCall:
    """A call of the compiled code for a whole layer, without its input and output.

    Attributes:
        native: the compiled code.
        cached: the cache rows that it writes to; None without attention.
        arguments: the structs of layer and positions, and that of the attention or an array of several sequences'.
        sequences: number of sequences.
        weights: the tensors they point to, kept alive.
        dtype: dtype of inputs and outputs.
        ahead: an input and its output, if computed ahead of time.
    """

    native: ctypes.CDLL
    cached: AppendedRows | None
    arguments: tuple[ctypes.Structure, ctypes.Structure, ctypes.Structure | ctypes.Array[Any]]
    sequences: int
    weights: Sequence[Any]
    dtype: torch.dtype
    ahead: tuple[Tensor, Tensor] | None = None

    def run(self, x: Tensor) -> Tensor | None:
        """Return the layer's output; None if this call does not apply."""
        if not self.takes(x) or not self.append():
            return None
        if self.ahead is not None and self.ahead[0] is x:
            return self.ahead[1]
        y = torch.empty_like(x)
        run_layers([self], x, [y])
        return y

    def takes(self, x: Tensor) -> bool:
        """Return whether the compiled code can read an input."""
        return x.dtype is self.dtype and x.is_contiguous()

    def append(self) -> bool:
        """Append the new rows to the cache; False if rows were appended or dropped meanwhile."""
        return self.cached is None or self.cached.take()


def run_layers(calls: Sequence[LayerCall], x: Tensor, outputs: Sequence[Tensor]) -> None:
    """Write the outputs of consecutive layers, given the input of the first; rows for the caches are not in use yet."""
    structs = (CallArguments * len(calls))()
    for call, struct, y in zip(calls, structs, outputs, strict=True):
        struct.layer, struct.positions, struct.attention = map(ctypes.addressof, call.arguments)
        struct.sequences, struct.y = call.sequences, y.data_ptr()
    calls[0].native.layers(ctypes.byref(structs), len(calls), x.data_ptr(), torch.get_num_threads())
