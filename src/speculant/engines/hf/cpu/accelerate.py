"""The fast pass: a model's own forward, with what it can be spared done by code that is made for the rows of a draft.

A pass over a few dozen rows should cost little more than one over a single row, since reading the weights is most of
either; PyTorch's matrix products on CPUs are far from that. `linear.cpp` comes closer, and reads the weights where
they lie, so nothing is packed, memory stays what it was, and adapters or changed weights need no second preparation.

Only for the length of a pass do modules answer with it: decoder layers that `layers.py` knows as wholes, other
`torch.nn.Linear` modules one by one (`linears.py`), and attention as `grouped.py` tells; the model itself is not
changed. Other modules (experts of a mixture, GPT-2's Conv1D, quantised ones) run as they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from speculant.engines.hf.cpu.build import BuildError, load_native, processor
from speculant.engines.hf.cpu.decoder_layer import FusedLayer, fused_layers
from speculant.engines.hf.cpu.gqa import GroupedAttention
from speculant.engines.hf.cpu.linear import FastLinear, is_ordinary
from speculant.engines.hf.cuda.graph_runner import GraphError, GraphRunner

LEAST_WEIGHTS = 1 << 18  # smaller layers are left alone by default: the call costs what it saves


@dataclass(frozen=True, slots=True, kw_only=True)
class Fast:
    """A prepared model, or the reason why it is not.

    Attributes:
        forwards: each prepared linear layer with its fast forward.
        layers: decoder layers that are done as one.
        attention: of heads that share keys and values.
        graphs: passes that are recorded and replayed instead, on CUDA.
        notes: what the user should know.
    """

    forwards: tuple[tuple[nn.Module, FastLinear], ...] = ()
    layers: tuple[FusedLayer, ...] = ()
    attention: GroupedAttention | None = None
    graphs: GraphRunner | None = None
    notes: tuple[str, ...] = ()

    @contextlib.contextmanager
    def active(self, rows: int) -> Iterator[None]:
        """Let the prepared modules answer fast, except those that have got a forward of their own meanwhile.

        Linear layers by themselves are left alone in a pass over too few rows to gain from it, since the detour of
        every module costs time too.

        Another thread's pass over the same model may end first; then the rest of this one runs torch's products.
        """
        linears = [(module, forward) for module, forward in self.forwards if forward.suits(rows)]
        listened = module_hooks._global_forward_hooks or module_hooks._global_forward_pre_hooks
        layers = [(layer.module, layer) for layer in self.layers] if not listened else []
        forwards: list[tuple[nn.Module, Callable[..., Tensor]]] = [*linears, *layers]
        try:
            for module, forward in forwards:
                module.__dict__.setdefault("forward", forward)
            with self.attention.active() if self.attention and forwards else contextlib.nullcontext():
                yield
        finally:
            for module, forward in forwards:
                if module.__dict__.get("forward") is forward:
                    module.__dict__.pop("forward", None)


def prepare_model(model: Any, fast: bool | Fast | None) -> Fast:
    """Prepare a model where it pays (None), wherever it is possible (True), not at all (False), or as it was before."""
    if isinstance(fast, Fast):
        return fast
    if fast is False:
        return Fast()
    if fast and model.device.type == "cuda":
        try:
            return Fast(graphs=GraphRunner(model))
        except GraphError as error:
            return Fast(notes=(f"not prepared for fast passes: {error}.",))
    reason = _reason(model)
    least = 0 if fast else LEAST_WEIGHTS
    modules = [] if reason else [module for module in model.modules() if is_ordinary(module, least)]
    if not reason and not modules:
        reason = "it has no linear layer that its code can do"
    elif not reason and not fast and modules[0].weight.dtype is torch.bfloat16 and _multiplies_bfloat16():
        reason = "the processor multiplies bfloat16 itself; fast=True prepares it all the same"
    if not reason:
        try:
            native = load_native()
            widens = not _multiplies_bfloat16()
            forwards = tuple((module, FastLinear(module, native, widens=widens)) for module in modules)
            layers = fused_layers(model, native, least)
            return Fast(forwards=forwards, layers=layers, attention=GroupedAttention(native))
        except BuildError as error:
            reason = str(error)
    elif not fast:
        return Fast()  # nobody asked, and nothing can be done about it
    return Fast(notes=(f"not prepared for fast passes: {reason}.",))


def _reason(model: Any) -> str | None:
    if model.device.type != "cpu":
        return f"there are none for {model.device.type} yet"
    if hasattr(model, "_orig_mod"):
        return "it is compiled already"
    return None


def _multiplies_bfloat16() -> bool:
    """Say whether the processor has instructions for it: AVX-512's, AMX's or ARM's."""
    return "bf16" in processor()
