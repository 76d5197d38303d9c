"""The arguments of the layers' calls in a pass, looked up for all layers when the first is called.

Between two layers megabytes of weights pass through the caches and evict everything else, Python's objects included:
the same lines take seven times as long there as in a loop over the layers. So at its start a pass prepares the calls of
all its layers at once. A layer uses its prepared call if it belongs to the same pass: with the same position
embeddings, mask and cache; otherwise the layer looks everything up itself.

In passes over few rows that run layers in sequence, all of them or some, the first also computes the following ones.
They return the computed result if they are given the very tensor that the previous layer returned, which holds unless a
hook or a view of the model changed something on the way; otherwise they compute again. Rows written to the cache ahead
of time are in use only once their layer is called.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from speculant.core.sublayers import Sublayers
from speculant.engines.hf.batch_attention import BatchCache
from speculant.engines.hf.caches.in_place_layer import InPlaceLayer

MAX_AHEAD = 128  # maximum rows: the outputs of all layers are kept


@dataclass(frozen=True, slots=True, eq=False)
class CacheRows:
    """The rows of a cache layer followed by the new rows of a pass.

    Attributes:
        layer: the cache layer.
        before: its length when this was looked up.
        rows: keys and values with room for the new ones.
    """

    layer: InPlaceLayer
    before: Any
    rows: tuple[Tensor, Tensor]

    def take(self) -> bool:
        """Append the new rows, which the caller writes; False if rows were appended or dropped meanwhile."""
        if self.layer.held is not self.before:
            return False
        self.layer.hold(self.rows)
        return True


class AppendedRows(Protocol):
    """The cache rows that a call writes to."""

    def take(self) -> bool:
        """Append the new rows, which the caller writes; False if rows were appended or dropped meanwhile."""


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
        if x.dtype is not self.dtype or not x.is_contiguous():
            return None
        if self.cached is not None and not self.cached.take():
            return None
        if self.ahead is not None and self.ahead[0] is x:
            return self.ahead[1]
        y, (layer, positions, call) = torch.empty_like(x), map(ctypes.byref, self.arguments)
        given, threads = x.data_ptr(), torch.get_num_threads()
        self.native.layer(layer, given, given, positions, call, self.sequences, y.data_ptr(), threads)
        return y


def run_ahead(calls: Sequence[LayerCall], x: Tensor) -> None:
    """Compute the outputs of consecutive layers, given the input of the first."""
    structs, given = (CallArguments * len(calls))(), x
    for call, struct, y in zip(calls, structs, torch.empty(len(calls), *x.shape, dtype=x.dtype), strict=True):
        struct.layer, struct.positions, struct.attention = map(ctypes.addressof, call.arguments)
        struct.sequences = call.sequences
        struct.y, call.ahead, given = y.data_ptr(), (given, y), y
    calls[0].native.layers(ctypes.byref(structs), len(calls), x.data_ptr(), torch.get_num_threads())


@dataclass(slots=True, eq=False)
class _Plan:
    mask: Tensor | None
    cache: int
    shape: torch.Size
    options: int
    calls: dict[Any, LayerCall] = field(default_factory=dict)


class PassPlans:
    """The calls of the passes in progress, one pass per thread, over the fused layers of a model.

    Attributes:
        layers: the fused layers, at their indices in the model; None for others.
    """

    def __init__(self) -> None:
        self.layers: Sequence[Any] = ()
        self._local = threading.local()

    def begin(self, *, ahead: bool, run: Sublayers | None = None) -> None:
        """Declare which sublayers this thread's next pass runs, and whether it runs nothing between them.

        Args:
            ahead: whether the first may compute the following ones.
            run: the sublayers that run; None for all.
        """
        self._local.ahead, self._local.layers = ahead, self.layers
        if run is not None:
            known = dict(enumerate(self.layers))
            chosen = [(known.get(index), run.only(index)) for index in run.layers]
            self._local.layers = [layer.alone(only) if layer and only else layer for layer, only in chosen]

    def find(
        self, layer: Any, x: Tensor, cache: Any, mask: Tensor | None, embeddings: Any, options: dict[str, Any]
    ) -> LayerCall | None:
        """Return the call of a layer; None if a single call cannot compute it. It can be used once.

        Args:
            layer: one of those that run, whose `prepare` methods build their calls from the same arguments.
            x: [B, n, hidden], its input.
            cache, mask, embeddings, options: arguments of the pass, as transformers passes them to layers.
        """
        held = self._local.__dict__
        layers = held.get("layers", self.layers)
        if type(cache) not in (DynamicCache, BatchCache) or embeddings is None or layer not in layers:
            return None
        if held.get("embeddings") is not embeddings:  # they belong to another pass
            held["embeddings"], held["plans"] = embeddings, []
        for plan in held["plans"]:
            if plan.mask is mask and plan.cache == id(cache) and plan.shape == x.shape and plan.options == len(options):
                known: LayerCall | None = plan.calls.pop(layer, None)
                return known
        plan = _Plan(mask, id(cache), x.shape, len(options))
        following, gap = list[LayerCall](), False
        for each in layers[layers.index(layer) :]:
            call = None if each is None else each.prepare(x, cache, mask, embeddings, options)
            gap = gap or call is None
            if call is not None:
                plan.calls[each] = call
                following += [] if gap else [call]
        held["plans"].append(plan)
        if held.get("ahead") and len(following) > 1 and x.shape[:-1].numel() <= MAX_AHEAD:
            run_ahead(following, x)
        return plan.calls.pop(layer, None)
