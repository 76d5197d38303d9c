"""Views of a model: the same weights with other layers, without changing the model itself.

Passes that tap hidden states, skip layers or separate the sequences of a batch need modules that behave differently
from the model's own. Hooks or patches on the shared model would be visible to other threads, and an interrupt could
leave them behind. So such a pass runs on a view: shallow copies of the few modules on the way to the differing ones.
They share the dicts of parameters, buffers and hooks with the originals, so changes to those take effect at once, and
they are created for every pass (tens of microseconds), so nothing becomes stale.
"""

from __future__ import annotations

import copy
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from speculant.core.errors import UnsupportedError


@dataclass(frozen=True, slots=True, eq=False)
class LayerList:
    """The place of a model's decoder layers.

    Attributes:
        path: the module names from the model down to the list.
        layers: the list.
    """

    path: tuple[str, ...]
    layers: nn.ModuleList

    def __len__(self) -> int:
        return len(self.layers)

    def belongs_to(self, model: Any) -> bool:
        """Return whether this is still the list at its place in a model."""
        found = model
        for name in self.path:
            found = found._modules.get(name)
            if found is None:
                return False
        return found is self.layers


def find_layers(model: Any) -> LayerList | None:
    """Find a model's decoder layers: the outermost list with as many modules as its config has layers.

    In models with parts for other media, the list in the text part. None if there is no such list, or more than one.
    """
    text = model.config.get_text_config(decoder=True)
    count = getattr(decoder_config(model).get_text_config(decoder=True), "num_hidden_layers", None)
    frontier: list[tuple[tuple[str, ...], nn.Module]] = [((), model)]
    if text is not model.config:
        decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
        named: list[tuple[str, nn.Module]] = [*model.named_modules()]
        frontier = [(tuple(name.split(".")), part) for name, part in named if name and part is decoder] or frontier
    while frontier:
        found = [(path, each) for path, each in frontier if isinstance(each, nn.ModuleList) and len(each) == count]
        if found:
            return LayerList(*found[0]) if len(found) == 1 else None
        frontier = [
            ((*path, name), child)
            for path, module in frontier
            for name, child in module._modules.items()
            if child is not None
        ]
    return None


def view_model(source: Any, path: tuple[str, ...], changed: Mapping[int, nn.Module]) -> Any:
    """Return a view of a model with some decoder layers replaced.

    Args:
        source: the model, or the shadow modules that an acceleration runs instead.
        path: the module names down to the list of layers.
        changed: replacements by layer index.

    Raises:
        UnsupportedError: a module above the layers has a forward of its own (compiled, or patched).
    """
    above = [source]
    for name in path:
        above.append(getattr(above[-1], name))
    view: nn.Module = twin(above.pop(), modules={str(index): layer for index, layer in changed.items()})
    for module, name in zip(reversed(above), reversed(path), strict=True):
        view = twin(module, modules={name: view})
    return view


def view_module(source: Any, path: tuple[str, ...], module: nn.Module) -> Any:
    """Return a view of a model with the module at a path replaced.

    Raises:
        UnsupportedError: a module on the way has a forward of its own (compiled, or patched).
    """
    above = [source]
    for name in path[:-1]:
        above.append(getattr(above[-1], name))
    view = module
    for parent, name in zip(reversed(above), reversed(path), strict=True):
        view = twin(parent, modules={name: view})
    return view


def tap_layer(layer: nn.Module, take: Callable[[Any], Any]) -> nn.Module:
    """Return a view of a module that passes each output to `take`, which may return another output in its place."""

    def hook(_module: nn.Module, _given: Any, output: Any) -> Any:
        return take(output)

    view = twin(layer, modules={}, own_forward=True)
    hooks: dict[int, Any] = {**layer._forward_hooks, -1: hook}  # torch counts its own from 0
    view.__dict__["_forward_hooks"] = hooks
    return view


def skip_layer(layer: nn.Module, outputs: int | None) -> nn.Module:
    """Return a view of a layer that returns its input.

    Args:
        layer: the layer.
        outputs: length of the tuple it returns, the hidden states first; None if it returns no tuple.
    """

    def forward(*args: Any, **options: Any) -> Any:
        hidden = args[0] if args else options["hidden_states"]
        return hidden if outputs is None else (hidden, *[None] * (outputs - 1))

    return with_forward(layer, forward)


def feed_layer(layer: nn.Module, outputs: int | None, states: Tensor) -> nn.Module:
    """Return a view of a layer that returns given states [n, D], whatever its input; `outputs` as in `skip_layer`."""

    def forward(*_args: Any, **_options: Any) -> Any:
        return states[None] if outputs is None else (states[None], *[None] * (outputs - 1))

    return with_forward(layer, forward)


def with_forward(layer: nn.Module, forward: Callable[..., Any]) -> nn.Module:
    """Return a view of a module with another forward, and without its hooks."""
    view = twin(layer, modules={}, own_forward=True)
    view.__dict__ |= {"forward": forward, "_forward_hooks": {}, "_forward_pre_hooks": {}}
    return view


def decoder_config(model: Any) -> Any:
    """Return the config in which the decoder layers of a model look up their attention."""
    encodes = getattr(model.config, "is_encoder_decoder", False)  # T5's decoders have one of their own
    return model.get_decoder().config if encodes else model.config.get_text_config(decoder=True)


def attention_paths(layer: nn.Module, config: Any) -> tuple[tuple[str, ...], ...]:
    """Return the paths of the modules in a layer that look up their attention function in this config.

    If none does so in its own forward: all modules that have the config.
    """
    holders = [
        (tuple(name.split(".")) if name else (), type(module))
        for name, module in layer.named_modules()
        if module.__dict__.get("config") is config
    ]
    attending = [path for path, kind in holders if _looks_up_attention(kind)]
    return tuple(attending or (path for path, _ in holders))


def with_config(module: nn.Module, paths: tuple[tuple[str, ...], ...], config: Any, *, below: bool = False) -> Any:
    """Return a view of a module in which the modules at some paths, () being itself, have another config.

    Raises:
        UnsupportedError: a module on the way, other than the first, has a forward of its own.
    """
    rest: dict[str, tuple[tuple[str, ...], ...]] = {}
    for path in paths:
        if path:
            rest[path[0]] = (*rest.get(path[0], ()), path[1:])
    changed = {name: with_config(getattr(module, name), inner, config, below=True) for name, inner in rest.items()}
    view = twin(module, modules=changed, own_forward=not below)
    if () in paths:
        view.__dict__["config"] = config
    return view


def _looks_up_attention(kind: type[nn.Module]) -> bool:
    code = getattr(inspect.unwrap(kind.forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def change_config(config: Any, **changes: Any) -> Any:
    """Return a shallow copy of a config with other attributes, bypassing setters that would change shared parts."""
    changed = copy.copy(config)
    changed.__dict__.update(changes)
    return changed


def twin(module: nn.Module, *, modules: Mapping[str, nn.Module], own_forward: bool = False) -> nn.Module:
    """Return a shallow copy of a module with some of its submodules replaced.

    Args:
        module: the original.
        modules: the replaced submodules, by name.
        own_forward: whether to tolerate a forward that was set on the original and cannot be bound to the copy. It runs
            the original's submodules.

    Raises:
        UnsupportedError: a forward was set on the original, and it cannot be bound to the copy.
    """
    state = dict(module.__dict__)
    view: nn.Module = object.__new__(type(module))
    state["_modules"] = {**state["_modules"], **modules}  # bypasses the property of a shadow, which is slow
    state["_compiled_call_impl"] = None  # of the original
    if "forward" in state:
        rebound = _rebind(module, view)
        if rebound is None and not own_forward:
            raise UnsupportedError(
                f"the forward of {type(module).__name__} was replaced or compiled, so that hidden states, single "
                "layers and batches cannot be separated in it; use the model as it was loaded."
            )
        state |= rebound or {}
    view.__dict__.update(state)
    for name in getattr(type(module), "__slots__", ()):
        object.__setattr__(view, name, getattr(module, name))
    return view


def _rebind(module: nn.Module, view: nn.Module) -> dict[str, Any] | None:
    """Return the forward that was set on a module, bound to its copy; None if it cannot be.

    It can be if accelerate's hooks set it, or if it is the class's own, which older transformers leave on modules whose
    hidden states were requested.
    """
    forward, before = module.__dict__["forward"], module.__dict__.get("_old_forward")
    if isinstance(forward, types.MethodType) and forward.__self__ is module:
        own = forward.__func__ is type(module).forward
        return {"forward": types.MethodType(forward.__func__, view)} if own else None
    partial = isinstance(forward, functools.partial) and forward.args == (module,)
    if not (partial and isinstance(before, types.MethodType) and before.__self__ is module):
        return None
    rebound = functools.partial(forward.func, view, **forward.keywords)
    return {
        "forward": functools.update_wrapper(rebound, before),
        "_old_forward": types.MethodType(before.__func__, view),
    }
