"""The prepared calls of layers that a pass runs one by one, because it reads or changes something between them.

A pass prepares the calls of all its layers when the first is called (`layer_stack.py`). A layer uses its prepared call
if it belongs to the same pass: with the same position embeddings, mask and cache; otherwise the layer looks everything
up itself.

In passes over few rows that run layers in sequence, all of them or some, the first also computes the following ones.
They return the computed result if they are given the very tensor that the previous layer returned, which holds unless a
hook or a view of the model changed something on the way; otherwise they compute again. Rows written to the cache ahead
of time are in use only once their layer is called.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

from speculant.core.sublayers import Sublayers
from speculant.engines.hf.batch_attention import BatchCache
from speculant.engines.hf.cpu.decoder_layer import FusedLayer
from speculant.engines.hf.cpu.gqa import GQAttention
from speculant.engines.hf.cpu.kernel_table import KernelTable
from speculant.engines.hf.cpu.layer_calls import LayerCall, run_layers
from speculant.engines.hf.cpu.layer_matching import is_known
from speculant.engines.hf.cpu.layer_stack import MAX_TOGETHER, LayerStack


def run_ahead(calls: Sequence[LayerCall], x: Tensor) -> None:
    """Compute the outputs of consecutive layers, given the input of the first."""
    outputs, given = torch.empty(len(calls), *x.shape, dtype=x.dtype).unbind(), x
    run_layers(calls, x, outputs)
    for call, y in zip(calls, outputs, strict=True):
        call.ahead, given = (given, y), y


@dataclass(slots=True, eq=False)
class _Plan:
    mask: Tensor | None
    cache: int
    shape: torch.Size
    options: int
    calls: dict[FusedLayer, LayerCall] = field(default_factory=dict)


class PassPlans:
    """The calls of the passes in progress, one pass per thread, over the fused layers of a model.

    Attributes:
        stack: the layers.
    """

    def __init__(self) -> None:
        self.stack = LayerStack()
        self._local = threading.local()

    def begin(self, *, ahead: bool, run: Sublayers | None = None) -> None:
        """Declare which sublayers this thread's next pass runs, and whether it runs nothing between them.

        Args:
            ahead: whether the first may compute the following ones.
            run: the sublayers that run; None for all.
        """
        layers: list[FusedLayer | None] = self.stack.layers
        if run is not None:
            known = dict(enumerate(layers))
            chosen = [(known.get(index), run.only(index)) for index in run.layers]
            layers = [layer.alone(only) if layer and only else layer for layer, only in chosen]
        self._local.ahead, self._local.layers = ahead, layers

    def find(
        self, layer: FusedLayer, x: Tensor, cache: Any, mask: Tensor | None, embeddings: Any, options: dict[str, Any]
    ) -> LayerCall | None:
        """Return the call of a layer; None if a single call cannot compute it. It can be used once.

        Args:
            layer: one of those that run.
            x: [B, n, hidden], its input.
            cache, mask, embeddings, options: arguments of the pass, as transformers passes them to layers.
        """
        held = self._local.__dict__
        layers = held.get("layers", self.stack.layers)
        if type(cache) not in (DynamicCache, BatchCache) or embeddings is None or layer not in layers:
            return None
        if held.get("embeddings") is not embeddings:  # they belong to another pass
            held["embeddings"], held["plans"] = embeddings, []
        for plan in held["plans"]:
            if plan.mask is mask and plan.cache == id(cache) and plan.shape == x.shape and plan.options == len(options):
                known: LayerCall | None = plan.calls.pop(layer, None)
                return known
        plan, rest = _Plan(mask, id(cache), x.shape, len(options)), layers[layers.index(layer) :]
        calls = self.stack.prepare(rest, x, cache, mask, embeddings, options)
        plan.calls = {each: call for each, call in zip(rest, calls, strict=True) if each and call}
        held["plans"].append(plan)
        following = calls[: calls.index(None)] if None in calls else calls
        if held.get("ahead") and len(following) > 1 and x.shape[:-1].numel() <= MAX_TOGETHER:
            run_ahead([call for call in following if call], x)
        return plan.calls.pop(layer, None)


def find_fused_layers(
    model: nn.Module, table: KernelTable, attention: GQAttention, *, minimum: int, plans: PassPlans | None = None
) -> tuple[FusedLayer, ...]:
    """Return the layers that the compiled code supports and whose matrices have at least `minimum` weights."""
    plans = PassPlans() if plans is None else plans
    layers = (FusedLayer(module, table, attention, plans) for module in model.modules() if is_known(module))
    found = tuple(layer for layer in layers if layer.weights >= minimum and layer.ready() is not None)
    plans.stack = LayerStack(found, model)
    return found
