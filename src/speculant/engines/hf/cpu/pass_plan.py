"""What the layers of a pass are called with, looked up for all of them when the first is called.

Between two layers megabytes of weights pass through the caches and evict everything else, Python's objects too: the
same lines take seven times as long there as in a loop over the layers. So a pass that begins prepares the calls of all
its layers at once. A layer uses what was prepared if it is called in the same pass: with the same embeddings of
positions, mask and cache; a layer that is not, as in a batch, looks everything up itself.

In passes that run all layers over few rows the first layer goes on and computes those behind it, too. They return what
it has computed if they are given just that tensor which the layer before them has returned, as they are unless a hook
or a view of the model has changed something on the way; else they compute anew. The rows that were written to the
cache ahead are in use only once their layer is called.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from speculant.engines.hf.caches.in_place_layer import InPlaceLayer

MAX_AHEAD = 64  # rows: the outputs of all layers are held


@dataclass(frozen=True, slots=True, eq=False)
class CacheRows:
    """The rows of a cache's layer with those of a pass behind them.

    Attributes:
        layer: of the cache.
        before: what it held when this was found.
        rows: keys and values with room for the new ones.
    """

    layer: InPlaceLayer
    before: Any
    rows: tuple[Tensor, Tensor]

    def take(self) -> bool:
        """Append the new rows, which the caller writes; False if others have been appended or dropped meanwhile."""
        if self.layer.held is not self.before:
            return False
        self.layer.hold(self.rows)
        return True


class CallArguments(ctypes.Structure):
    """The struct `LayerCall` of layer.cpp."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("layer", "positions", "attention", "y"))


@dataclass(slots=True, eq=False)
class LayerCall:
    """A call of the compiled code for a whole layer, but for its input and output.

    Attributes:
        index: of the layer.
        native: the compiled code.
        cached: the rows that it writes to.
        arguments: the structs of layer, positions and attention.
        weights: what they point to, held so that it stays.
        dtype: of inputs and outputs.
        ahead: an input, and the output for it that has been computed already.
    """

    index: int
    native: ctypes.CDLL
    cached: CacheRows
    arguments: tuple[ctypes.Structure, ctypes.Structure, ctypes.Structure]
    weights: Sequence[Any]
    dtype: torch.dtype
    ahead: tuple[Tensor, Tensor] | None = None

    def run(self, x: Tensor) -> Tensor | None:
        """Return the layer's output; None if it must be called otherwise."""
        if x.dtype is not self.dtype or not x.is_contiguous() or not self.cached.take():
            return None
        if self.ahead is not None and self.ahead[0] is x:
            return self.ahead[1]
        y, (layer, positions, call) = torch.empty_like(x), map(ctypes.byref, self.arguments)
        self.native.layer(layer, x.data_ptr(), x.data_ptr(), positions, call, y.data_ptr(), torch.get_num_threads())
        return y


def run_ahead(calls: Sequence[LayerCall], x: Tensor) -> None:
    """Compute the outputs of layers that follow each other, given the input of the first."""
    structs, given = (CallArguments * len(calls))(), x
    for call, struct, y in zip(calls, structs, torch.empty(len(calls), *x.shape, dtype=x.dtype), strict=True):
        struct.layer, struct.positions, struct.attention = map(ctypes.addressof, call.arguments)
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
    """The calls of the passes that are under way, one per thread, over the fused layers of a model."""

    def __init__(self) -> None:
        self.layers: Sequence[Any] = ()
        self._local = threading.local()

    def begin(self, *, whole: bool, stop: int | None = None) -> None:
        """Say whether this thread's next pass runs all layers from its first one on, up to one or the last."""
        self._local.whole, self._local.stop = whole, stop

    def find(
        self, layer: Any, x: Tensor, cache: Any, mask: Tensor | None, embeddings: Any, options: dict[str, Any]
    ) -> LayerCall | None:
        """Return the call of a layer; None where it cannot be computed by a single one. It can be used once.

        Args:
            layer: one of `layers`, which `prepare` their calls from the same arguments.
            x: [B, n, hidden], its input.
            cache, mask, embeddings, options: of the pass, as transformers calls layers.
        """
        if type(cache) is not DynamicCache or embeddings is None:
            return None
        held = self._local.__dict__
        if held.get("embeddings") is not embeddings:  # of another pass
            held["embeddings"], held["plans"] = embeddings, []
        for plan in held["plans"]:
            if plan.mask is mask and plan.cache == id(cache) and plan.shape == x.shape and plan.options == len(options):
                known: LayerCall | None = plan.calls.pop(layer, None)
                return known
        plan = _Plan(mask, id(cache), x.shape, len(options))
        following: list[LayerCall] = []
        stop = held.get("stop")
        for each in self.layers[self.layers.index(layer) :]:
            if stop is not None and each.index >= stop:
                break
            call = each.prepare(x, cache, mask, embeddings, options)
            if call is not None:
                plan.calls[each] = call
                if not following or call.index == following[-1].index + 1:
                    following.append(call)
        held["plans"].append(plan)
        if held.get("whole") and len(following) > 1 and x.shape[:-1].numel() <= MAX_AHEAD and layer in plan.calls:
            run_ahead(following, x)
        return plan.calls.pop(layer, None)
