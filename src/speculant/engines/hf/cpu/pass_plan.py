"""What the layers of a pass are called with, looked up for all of them when the first is called.

Between two layers megabytes of weights pass through the caches and evict everything else, Python's objects too: the
same lines take seven times as long there as in a loop over the layers. So a pass that begins prepares the calls of all
its layers at once. A layer uses what was prepared if it is called in the same pass: with the same embeddings of
positions, mask and cache; a layer that is not, because a view of the model leaves others out or in a batch, looks
everything up itself.
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


@dataclass(frozen=True, slots=True, eq=False)
class LayerCall:
    """A call of the compiled code for a whole layer, but for its input and output.

    Attributes:
        native: the compiled code.
        cached: the rows that it writes to.
        arguments: the structs of layer, positions and attention.
        weights: what they point to, held so that it stays.
        dtype: of inputs and outputs.
    """

    native: ctypes.CDLL
    cached: CacheRows
    arguments: tuple[ctypes.Structure, ctypes.Structure, ctypes.Structure]
    weights: Sequence[Any]
    dtype: torch.dtype

    def run(self, x: Tensor) -> Tensor | None:
        """Return the layer's output; None if it must be called otherwise."""
        if x.dtype is not self.dtype or not x.is_contiguous() or not self.cached.take():
            return None
        y, (layer, positions, call) = torch.empty_like(x), map(ctypes.byref, self.arguments)
        self.native.layer(layer, x.data_ptr(), x.data_ptr(), positions, call, y.data_ptr(), torch.get_num_threads())
        return y


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
        for each in self.layers[self.layers.index(layer) :]:
            call = each.prepare(x, cache, mask, embeddings, options)
            if call is not None:
                plan.calls[each] = call
        held["plans"].append(plan)
        return plan.calls.pop(layer, None)
