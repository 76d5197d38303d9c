"""The fused layers of a model, looked up, prepared and run together.

Between two layers megabytes of weights pass through the caches and evict everything else, Python's objects included:
the same lines take several times as long there as in a loop over the layers. So a pass looks up the arguments of all
its layers at once: their weights if anything of the layers has changed since the last pass (`ModulesState`), and
what they share, such as positions and masks, once.

transformers runs a model's layers in a loop over a slice of their list. In an accelerated pass over few rows, that
slice holds a single module, which is all layers in one call (`JoinedLayers`), as long as nobody can tell: no layer has
hooks, a view, or a mask of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from speculant.core.sublayers import Part as Sublayer
from speculant.engines.hf.cache import rows_to_move
from speculant.engines.hf.cpu.batch_rows import CallsOfAll, KnownRows, PassRows, as_array
from speculant.engines.hf.cpu.cached_rows import CachedRows
from speculant.engines.hf.cpu.decoder_layer import FusedLayer
from speculant.engines.hf.cpu.gqa import AttentionArguments
from speculant.engines.hf.cpu.layer_calls import CallArguments, LayerCall
from speculant.engines.hf.cpu.layer_matching import rotary_functions
from speculant.engines.hf.cpu.layer_structs import LayerArguments, PositionArguments
from speculant.engines.hf.cpu.products import Kernel
from speculant.engines.hf.modules_state import HOOKS, ModulesState

CALLS = np.dtype(CallArguments)
MAX_TOGETHER = 128  # maximum rows of a pass over several layers in one call, which nothing interrupts


@dataclass(frozen=True, slots=True, eq=False)
class ReadyLayers:
    """The layers as they were when they were last looked up.

    Attributes:
        state: what all of this depends on.
        weights: the tensors that each layer reads, by its index; None if it cannot be computed.
        alike: whether the attention of all layers of the model is known, and differs in weights only.
        joined: whether one call can compute all layers: they are alike, and nothing else runs.
        found: the layers' structs by index.
        structs: copies of these by index, sublayer and whether they use bfloat16 instructions.
    """

    state: ModulesState
    weights: dict[int, list[Any] | None]
    alike: bool
    joined: bool
    found: dict[int, LayerArguments]
    structs: dict[tuple[int, Sublayer | None, bool], LayerArguments] = field(default_factory=dict)

    def struct(self, layer: FusedLayer, kernel: Kernel) -> LayerArguments:
        """Return the struct of a layer whose products use a kernel."""
        key = layer.index, layer.only, kernel == "bf16_dot"
        if key not in self.structs:
            self.structs[key] = layer.arguments(kernel, self.found[layer.index])
        return self.structs[key]


class LayerStack:
    """The fused layers of a model.

    Attributes:
        layers: the fused layers, at their indices in the model; None for others.
        modules: the list of modules that consists of just these layers; None if there is none.
        rows: where the rows of caches lie that a call over all layers has extended.
    """

    def __init__(self, layers: Sequence[FusedLayer] = (), model: nn.Module | None = None) -> None:
        """Take the fused layers of a model."""
        known = {layer.index: layer for layer in layers}
        self.layers = [known.get(index) for index in range(max(known, default=-1) + 1)]
        self._fused = list(known.values())
        modules = [None if layer is None else layer.module for layer in self.layers]
        lists = (each for each in (model.modules() if model else ()) if isinstance(each, nn.ModuleList) and len(each))
        self.modules = next((each for each in lists if list(each) == modules), None)
        self.rows: KnownRows = WeakKeyDictionary()
        self._around: Sequence[nn.Module] = ()
        self._configs: Sequence[Any] = ()
        self._beside: Callable[[], list[Any]] = list
        self._held: ReadyLayers | None = None

    def watch(self, modules: Sequence[nn.Module], configs: Sequence[Any], beside: Callable[[], list[Any]]) -> None:
        """Look the layers up again after changes of further modules and their weights, configs, or values, too."""
        self._around, self._configs, self._beside = modules, configs, beside

    def prepare(
        self,
        layers: Sequence[FusedLayer | None],
        x: Tensor,
        cache: Any,
        mask: Tensor | None,
        embeddings: tuple[Tensor, Tensor],
        options: dict[str, Any],
    ) -> list[LayerCall | None]:
        """Return a call for each layer that a single one can compute; nothing is appended to the cache yet.

        Args:
            layers: some of the layers, or of their sublayers.
            x: a tensor like the layers' input, [B, n, hidden].
            cache, mask, embeddings, options: the arguments of the layers' calls.
        """
        ready, (cos, sin), calls = self.look_up(), embeddings, list[LayerCall | None]()
        positions = PositionArguments(cos.data_ptr(), sin.data_ptr(), cos.shape[0] == 1)
        kernels, rows = dict[Any, Any](), dict[int, tuple[PassRows | None, CallsOfAll | None]]()
        batch, n, _ = x.shape
        for layer in layers:
            calls.append(None)
            weights = None if layer is None else ready.weights[layer.index]
            if layer is None or weights is None:
                continue
            if layer.form not in kernels:
                kernels[layer.form] = layer.single_kernel(x, embeddings)
            kernel = kernels[layer.form]
            if kernel is None:
                continue
            cached, attention = None, as_array(AttentionArguments(batch=batch, n=n, heads=layer.heads, head=layer.head))
            if layer.only != "mlp":
                config = id(layer.attention.config)
                if config not in rows:
                    found = layer.pass_rows(cache, mask, x, options)
                    whole = range(len(self.layers))
                    rows[config] = found, self._find_calls(layer, found, whole) if ready.alike else None
                found, together = rows[config]
                own = None if together is None else together.of_layer(layer.index)
                if found is not None and own is None:
                    own = found.calls(layer.attention, layer.heads, layer.head, layer.dtype)
                if own is None:
                    continue
                cached, attention = own
            arguments = ready.struct(layer, kernel), positions, attention
            calls[-1] = LayerCall(layer.native, cached, arguments, len(attention), weights, layer.dtype)
        return calls

    def slice(self, shadow: Any, index: slice) -> Sequence[JoinedLayers] | None:
        """Return what to take for a slice of a shadow of `modules`: all layers as one; None for the slice itself."""
        modules = self.modules
        if modules is None or vars(shadow) is not vars(modules):  # some of its layers are views
            return None
        if range(len(modules))[index] != range(len(modules)):
            return None
        kinds = getattr(self._fused[0].attention.config, "layer_types", None)
        return (JoinedLayers(self, shadow),) if len(set(kinds or ("all",))) == 1 else None

    def run(
        self,
        x: Tensor,
        *,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **options: Any,
    ) -> Tensor | None:
        """Return the output [B, n, hidden] of all layers; None if one call cannot compute it, and nothing was done.

        Args:
            x: [B, n, hidden], the input of the first.
            attention_mask, past_key_values, position_embeddings, **options: the arguments of the layers' calls.
        """
        if position_embeddings is None:
            return None
        cos, sin = position_embeddings
        positions = PositionArguments(cos.data_ptr(), sin.data_ptr(), cos.shape[0] == 1)
        found = self.compute(
            self.look_up(), x, positions, past_key_values, attention_mask, options, embeddings=position_embeddings
        )
        return None if found is None else found[len(self.layers) - 1]

    def compute(
        self,
        ready: ReadyLayers,
        x: Tensor,
        positions: PositionArguments,
        cache: Any,
        mask: Tensor | None,
        options: dict[str, Any],
        *,
        embeddings: tuple[Tensor, ...] = (),
        layers: range | None = None,
        taps: Sequence[int] = (),
    ) -> dict[int, Tensor] | None:
        """Return the outputs [B, n, hidden] of some consecutive layers; None if one call cannot compute them.

        Args:
            ready: what `look_up` has returned.
            x: [B, n, hidden], the input of the first of the layers.
            positions: struct of the rotary embeddings.
            cache, mask, options: the arguments of the layers' calls.
            embeddings: the rotary embeddings, if they have yet to be checked.
            layers: the layers that run; None for all.
            taps: those of them whose output is returned besides that of the last one.
        """
        first = self.layers[0] if ready.joined else None
        if first is None or x[..., 0].numel() > MAX_TOGETHER:
            return None
        kernel = first.single_kernel(x, embeddings)
        rows = first.pass_rows(cache, mask, x, options)
        span = range(len(self.layers)) if layers is None else layers
        found = self._find_calls(first, rows, span)
        if kernel is None or found is None:
            return None
        passed_on = torch.empty_like(x), torch.empty_like(x)
        outputs = {layer: torch.empty_like(x) for layer in (*taps, span[-1])}
        written = [outputs.get(layer, passed_on[layer % 2]).data_ptr() for layer in span]
        calls = np.empty(len(span), CALLS)
        own = [layer for layer in self.layers[span.start : span.stop] if layer is not None]
        calls["layer"] = [ctypes.addressof(ready.struct(layer, kernel)) for layer in own]
        calls["positions"], calls["sequences"] = ctypes.addressof(positions), len(found.each)
        calls["attention"] = found.structs.ctypes.data + np.arange(len(span)) * found.structs.strides[0]
        calls["y"] = written
        first.native.layers(calls.ctypes.data, len(span), x.data_ptr(), torch.get_num_threads())
        if not found.take():
            raise RuntimeError("the cache was changed during a pass; give each request a cache of its own.")
        return outputs

    def keep(self, cache: Any, start: int, rows: list[int]) -> bool:
        """Keep rows of a cache as `cache.keep_rows` does; False, and nothing changed, if compiled code cannot."""
        first, all_layers = self.layers[0] if self.layers else None, range(len(self.layers))
        if first is None or (known := self.rows.get(cache)) is None:
            return False
        own = known.get(all_layers) or CachedRows.find(cache.layers, first.dtype, 0)
        if own is None or len(cache.layers) != len(all_layers):
            return False
        known[all_layers] = own
        still, moved = rows_to_move(rows)
        kept = own.keep(first.native, cache.layers, start + still, moved)
        if not kept:
            del known[all_layers]  # other buffers hold the rows by now; these are freed
        return kept

    def _find_calls(self, layer: FusedLayer, rows: PassRows | None, layers: range) -> CallsOfAll | None:
        """Return the calls of the attention in some layers, which is like that of one of them; None if unsupported."""
        if rows is None:
            return None
        shape = layer.heads, layer.head, layer.dtype
        return rows.calls_of_all(layer.attention, *shape, layers, self.rows)

    def look_up(self) -> ReadyLayers:
        """Return the layers as they are now."""
        held = self._held
        if held is None or not held.state.holds():
            held = self._held = self._look_up_anew()
        return held

    def _look_up_anew(self) -> ReadyLayers:
        modules = [part for layer in self._fused for part in layer.modules]
        lists = [] if self.modules is None else [self.modules]
        homes = dict.fromkeys(layer.home for layer in self._fused)
        functions = [partial(rotary_functions, home) for home in homes]
        state = ModulesState(
            [*modules, *lists, *self._around],
            lambda: [*chain.from_iterable(each() for each in functions), *self._beside()],
            settings=self._configs,
        )
        weights = {layer.index: layer.ready() for layer in self._fused}
        known = [weight for each in weights.values() for weight in each or ()]
        known += chain.from_iterable(module._parameters.values() for module in self._around)
        state.watch(weight for weight in known if isinstance(weight, Tensor))
        own = [vars(layer.module) for layer in self._fused]
        unwatched = all("forward" not in held and not any(held[name] for name in HOOKS) for held in own)
        whole = self.modules is not None and list(self.modules) == [layer.module for layer in self.layers if layer]
        alike = len({layer.attention_form for layer in self._fused}) == 1 and None not in self.layers
        found = {layer.index: layer.arguments() for layer in self._fused}
        joined = alike and unwatched and whole and None not in weights.values()
        return ReadyLayers(state, weights, alike, joined, found)


@dataclass(frozen=True, slots=True)
class JoinedLayers:
    """All layers of a model, called like one; their attributes, which some models read, are those of the first.

    Attributes:
        stack: the layers.
        shadow: the shadow of their list, which runs them one after the other where one call cannot.
    """

    stack: LayerStack
    shadow: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.shadow[0], name)

    def __call__(self, hidden_states: Tensor, **options: Any) -> Tensor:
        """Return what the layers return one after the other."""
        output = self.stack.run(hidden_states, **options)
        if output is None:
            output = hidden_states
            for layer in self.shadow:
                output = layer(output, **options)
        return output
