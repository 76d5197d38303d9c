"""The modules of a model that keep a state, and views of them whose recurrences are recorded.

transformers' mixers call their convolutions and recurrences by names of their module's file, alike in all families. A
view of a mixer runs the class's own code, with other functions under those names; projections, norms and gates stay the
model's, and the model itself is as it was (`model_view.py`).
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.model_view import find_layers, twin

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
FROM_NOTHING = "mamba_selective_scan"  # begins without a state, whatever has been read before
_STATES = {"get_conv_state", "update_conv_state", "get_recurrent_state", "update_recurrent_state"}

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Mixers:
    """Where a model keeps states.

    Attributes:
        paths: by decoder layer, the names of the modules from it down to each mixer.
        in_place: whether passes over one token write recurrent states in place.
        resumes: whether the model's own passes over several tokens go on from a state.
    """

    paths: Mapping[int, tuple[Path, ...]]
    in_place: bool
    resumes: bool


def find_mixers(model: Any) -> Mixers | None:
    """Return where a model keeps states; None where it does so in a way that is not known here."""
    place = find_layers(model)
    if place is None:
        return None
    paths: dict[int, tuple[Path, ...]] = {}
    called: set[str] = set()
    for index, layer in enumerate(place.layers):
        for name, module in layer.named_modules():
            names = _names(module)
            if not names & _STATES:
                continue
            if not names >= CONVOLUTIONS or ("update_recurrent_state" in names and not names & RECURRENCES):
                return None
            called |= names
            paths[index] = (*paths.get(index, ()), tuple(name.split(".")) if name else ())
    inside = {id(module) for layer in place.layers for module in layer.modules()}
    if not paths or any(_names(module) & _STATES for module in model.modules() if id(module) not in inside):
        return None
    return Mixers(paths, in_place=bool(called & IN_PLACE), resumes=FROM_NOTHING not in called)


def recorded_layer(layer: nn.Module, paths: tuple[Path, ...], functions: Mapping[str, Callable[..., Any]]) -> nn.Module:
    """Return a view of a decoder layer whose mixers call these functions instead of transformers'.

    Raises:
        UnsupportedError: somebody has exchanged the forward of a mixer, or moves its weights in and out.
    """
    if () in paths:
        return _recorded(layer, functions)
    inner: dict[str, tuple[Path, ...]] = {}
    for path in paths:
        inner[path[0]] = (*inner.get(path[0], ()), path[1:])
    return twin(
        layer,
        modules={name: recorded_layer(getattr(layer, name), below, functions) for name, below in inner.items()},
    )


def _recorded(mixer: nn.Module, functions: Mapping[str, Callable[..., Any]]) -> nn.Module:
    own = inspect.unwrap(type(mixer).forward)
    if "forward" in mixer.__dict__ or any(hasattr(child, "_hf_hook") for child in mixer.children()):
        raise UnsupportedError(
            f"the forward of {type(mixer).__name__} was exchanged, so its states cannot be recorded."
        )
    view = twin(mixer, modules={})
    changed = types.FunctionType(
        own.__code__, {**own.__globals__, **functions}, own.__name__, own.__defaults__, own.__closure__
    )
    changed.__kwdefaults__ = own.__kwdefaults__
    view.__dict__["forward"] = types.MethodType(changed, view)
    return view


def _names(module: nn.Module) -> set[str]:
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return set() if code is None else set(code.co_names)
