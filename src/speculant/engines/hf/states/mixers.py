"""The modules of a model that keep a state, and views of them that record their recurrences.

transformers' mixers call their convolutions and recurrences by names in their module's file, the same in all families.
A view of a mixer runs the class's own code with other functions under those names; projections, norms and gates stay
the model's, and the model itself is unchanged (`model_view.py`). Families that keep their states elsewhere have
adapters of their own (`adapter.py`).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers.cache_utils import DynamicCache

from speculant.engines.hf.states import lightning, module_states
from speculant.engines.hf.states.adapter import Adapter
from speculant.engines.hf.states.layers import LinearAttentionLayer
from speculant.engines.hf.states.recorder import StateRecorder
from speculant.engines.hf.views.model_view import find_layers, twin

CONVOLUTIONS = {"causal_conv1d_fn", "causal_conv1d_update"}
RECURRENCES = {
    "torch_chunk_gated_delta_rule",
    "torch_recurrent_gated_delta_rule",
    "chunk_kimi_delta_attention",
    "recurrent_kimi_delta_attention",
    "mamba2_chunk_scan",
    "mamba2_selective_state_update",
    "mamba_selective_scan",
    "mamba_selective_state_update",
}
IN_PLACE = {"mamba2_selective_state_update", "mamba_selective_state_update"}  # write into the state that they read
FROM_NOTHING = "mamba_selective_scan"  # starts without a state, whatever has been read before
_STATES = {"get_conv_state", "update_conv_state", "get_recurrent_state", "update_recurrent_state"}

Path = tuple[str, ...]
View = Callable[[int, nn.Module], nn.Module]  # takes the index of a decoder layer, and a mixer in it


@dataclass(frozen=True, slots=True, eq=False)
class Mixers:
    """The places where a model keeps states.

    Attributes:
        paths: for each decoder layer, the module names from it down to each mixer.
        in_place: whether passes over one token write recurrent states in place.
        resumes: whether the model's own passes over several tokens continue from a state.
        adapter: gives mixers their states.
    """

    paths: Mapping[int, tuple[Path, ...]]
    in_place: bool
    resumes: bool
    adapter: Adapter

    def record_mixers(self, recorder: StateRecorder) -> View:
        """Return the function that creates views of mixers for a pass over draft rows."""
        return lambda layer, mixer: self.adapter.record_mixer(mixer, layer, recorder)

    def own(self, cache: DynamicCache) -> View | None:
        """Return the function that creates views of mixers for a pass of the model's own; None if it needs none."""
        if not self.adapter.on_modules:
            return None
        return lambda layer, mixer: self.adapter.own(mixer, cache.layers[layer])


def find_mixers(model: Any) -> Mixers | None:
    """Return where a model keeps states; None if it does so in an unknown way."""
    place = find_layers(model)
    if place is None:
        return None
    paths: dict[int, tuple[Path, ...]] = {}
    called: set[str] = set()
    adapters: set[Adapter] = set()
    for index, layer in enumerate(place.layers):
        for name, module in layer.named_modules():
            names = _names(module)
            adapter = _adapter(module, names)
            if adapter is None and names & _STATES:
                return None
            if adapter is not None:
                called |= names
                adapters.add(adapter)
                paths[index] = (*paths.get(index, ()), tuple(name.split(".")) if name else ())
    inside = {id(module) for layer in place.layers for module in layer.modules()}
    if len(adapters) != 1 or any(_names(module) & _STATES for module in model.modules() if id(module) not in inside):
        return None
    [adapter] = adapters
    resumes = FROM_NOTHING not in called and not adapter.on_modules
    return Mixers(paths, in_place=bool(called & IN_PLACE), resumes=resumes, adapter=adapter)


def _adapter(module: nn.Module, names: set[str]) -> Adapter | None:
    """Return the adapter for a module; None if it keeps no states, or keeps them in an unknown way."""
    if names & _STATES:
        known = names >= CONVOLUTIONS and ("update_recurrent_state" not in names or names & RECURRENCES)
        return Adapter() if known else None
    if not hasattr(LinearAttentionLayer, "update_recurrent_state"):  # releases without layers for states
        return None
    if names >= lightning.NAMES:
        return lightning.Lightning(sys.modules[type(module).__module__].MiniMaxCache)
    return module_states.ModuleStates() if names >= module_states.NAMES else None


def view_layer(layer: nn.Module, paths: tuple[Path, ...], view: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Return a view of a decoder layer with its mixers replaced by views.

    Raises:
        UnsupportedError: the forward of a mixer was replaced, or its weights are moved in and out.
    """
    if () in paths:
        return view(layer)
    inner: dict[str, tuple[Path, ...]] = {}
    for path in paths:
        inner[path[0]] = (*inner.get(path[0], ()), path[1:])
    return twin(
        layer,
        modules={name: view_layer(getattr(layer, name), below, view) for name, below in inner.items()},
    )


def _names(module: nn.Module) -> set[str]:
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return set() if code is None else set(code.co_names)
