"""A second set of module objects over a model's state, in which some modules run other forwards.

An accelerated pass must not change the model: other threads, plain `generate` calls and interrupts at any moment must
find it as its owner left it. So nothing is put into the model, and there is nothing to undo. A shadow of a module is an
instance of a generated subclass whose `__dict__` *is* the module's: weights, buffers, hooks, adapters, attributes and a
user's own forward are shared, so changes take effect in both at once. Only the class differs: its children are shadows
in turn, and its forward may be another one. The model's own modules never refer to a shadow.

A list of layers that can be computed together may be taken for a single one (`layer_stack.py`).

Attention functions are looked up by the name in the config. For attention modules, by default those that share
key-value heads, the shadow returns a view of the config in which the name "sdpa" is replaced by one that is registered
with transformers once, in addition to its own names (`gqa.py`).
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Joining(Protocol):
    """Layers of a list that are computed together."""

    @property
    def modules(self) -> nn.ModuleList | None:
        """The list; None if there is none."""

    def slice(self, shadow: Any, index: slice) -> Any:
        """Return what to take for a slice of a shadow of the list; None for the slice itself."""


Forward = Callable[..., Tensor]  # called with the shadow and the arguments of the module's forward
_LARGEST_CACHE = 4  # maximum shadows per module; above, those of replaced modules are dropped


class ConfigView:
    """A config that names another attention function if `rename` returns one."""

    __slots__ = ("_config", "_rename")

    def __init__(self, config: Any, rename: Callable[[Any], Any]) -> None:
        self._config, self._rename = config, rename

    @property
    def _attn_implementation(self) -> Any:
        return self._rename(self._config._attn_implementation)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


class Shadows:
    """The shadows of a model's modules."""

    def __init__(
        self,
        model: nn.Module,
        forwards: Mapping[nn.Module, Forward],
        rename_attention: Callable[[Any], Any] | None = None,
        joining: Joining | None = None,
        *,
        groups: int = 2,
    ) -> None:
        """Prepare shadows, which are created when first needed.

        Args:
            model: the model.
            forwards: replacement forwards, by module.
            rename_attention: returns the name of the attention function to use instead of a given one.
            joining: layers that are computed together.
            groups: minimum query heads per key-value head for a module to use it.
        """
        self.model = model
        self._forwards = {id(module): forward for module, forward in forwards.items()}
        self._rename, self._groups, self._joining = rename_attention, groups, joining
        self._classes: dict[tuple[type, bool, bool, bool], type] = {}
        self._shadows: dict[int, tuple[nn.Module, nn.Module]] = {}
        self._maximum = _LARGEST_CACHE * sum(1 for _ in model.modules()) + 100

    def of(self, module: Any) -> Any:
        """Return the shadow of a module; non-modules and shadows are returned unchanged."""
        if not isinstance(module, nn.Module) or getattr(type(module), "_speculant_shadow", False):
            return module
        held = self._shadows.get(id(module))
        if held is not None and held[0] is module and type(held[1]).__base__ is type(module):
            return held[1]
        if isinstance(module, torch.jit.ScriptModule):
            return module  # its state is not in its __dict__
        if len(self._shadows) > self._maximum:
            self._shadows = {}
        forward = self._forwards.get(id(module))
        attends = self._rename is not None and _attends(module, self._groups)
        joined = self._joining is not None and module is self._joining.modules
        kind = type(module), forward is not None, attends, joined
        if kind not in self._classes:
            self._classes[kind] = self._make_class(*kind)
        shadow: nn.Module = object.__new__(self._classes[kind])
        object.__setattr__(shadow, "__dict__", module.__dict__)
        if forward is not None:
            object.__setattr__(shadow, "_speculant_forward", forward)
        self._shadows[id(module)] = module, shadow
        return shadow

    def _make_class(self, base: type, replaced: bool, attends: bool, joined: bool) -> type:
        """Create a subclass whose children are shadows."""

        def get_attribute(module: Any, name: str) -> Any:
            return self.of(base.__getattr__(module, name))  # type: ignore[attr-defined]

        def children(module: Any) -> dict[str, Any]:
            own: dict[str, Any] = module.__dict__["_modules"]
            shadows = {name: self.of(child) for name, child in own.items()}
            # A slice of a ModuleList is made of shadows, and filled through this same dictionary.
            return own if all(shadows[name] is child for name, child in own.items()) else shadows

        def set_children(module: Any, modules: Any) -> None:
            module.__dict__["_modules"] = modules

        def get_item(module: Any, index: Any) -> Any:
            assert self._joining is not None
            own: Any = base
            found = self._joining.slice(module, index) if isinstance(index, slice) else None
            return own.__getitem__(module, index) if found is None else found

        body: dict[str, Any] = {
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "__doc__": base.__doc__,
            "__slots__": ("_speculant_forward",) if replaced else (),
            "__getattr__": get_attribute,
            "_modules": property(children, set_children),
            "_speculant_shadow": True,
        }
        if replaced:
            body["forward"] = _run_forward
        if attends:
            rename = self._rename
            assert rename is not None
            body["config"] = property(lambda module: ConfigView(module.__dict__["config"], rename))
        if joined:
            body["__getitem__"] = get_item
        return types.new_class(base.__name__, (base,), exec_body=lambda namespace: namespace.update(body))


def _run_forward(shadow: Any, *args: Any, **kwargs: Any) -> Tensor:
    found: Tensor = shadow._speculant_forward(shadow, *args, **kwargs)
    return found


def _attends(module: nn.Module, groups: int) -> bool:
    """Return whether a module uses transformers' named attention, with >= `groups` query heads per key-value head."""
    if "config" not in module.__dict__ or getattr(module, "num_key_value_groups", 1) < groups:
        return False
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names
