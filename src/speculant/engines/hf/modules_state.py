"""The state of modules, compared with a copy of all that it consists of.

A model may change between two requests, for which it is probed (`probe/watched_state.py`), and between two passes, for
which compiled code replaces its layers (`cpu/layer_stack.py`). Between two passes megabytes of weights evict Python's
objects from the caches, so that looking at every attribute of every layer takes as long as a tenth of a pass. So the
comparison runs in functions that are compiled themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import attrgetter, is_
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

HOOKS = ("_forward_hooks", "_forward_pre_hooks")
PARTS = ("_modules", *HOOKS)  # containers of what runs when a module is called
_FORM, _VERSION = attrgetter("dtype", "shape"), attrgetter("_version")


class ModulesState:
    """The classes, attributes, contents and functions of some modules, and where some of their tensors lie."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        beside: Callable[[], Sequence[Any]],
        *,
        contents: Sequence[str] = ("_parameters", *PARTS),
        settings: Sequence[Any] = (),
    ) -> None:
        """Record the state.

        Args:
            modules: the modules, whose parts are listed too if they matter.
            beside: returns what else belongs to the state, such as functions that forwards look up elsewhere.
            contents: containers of the modules whose contents belong to the state.
            settings: further objects whose attributes belong to it, such as configs.
        """
        self._modules, self._beside = modules, beside
        self._kinds: list[Any] = list(map(type, modules))
        self._different_kinds = list(dict.fromkeys(self._kinds))
        self._called = self._find_called()
        self._owners = [*modules, *settings]
        self._attributes = [dict(vars(owner)) for owner in self._owners]
        found = [(name, held[name]) for held in self._attributes[: len(modules)] for name in contents]
        self._containers = [each for _, each in found if each]
        self._empty = [each for name, each in found if not each and name in PARTS]  # parts may be added to them
        self._contents = list(self._find_contents())
        self._tensors: list[Tensor] = []
        self._places: list[Any] = []

    def watch(self, tensors: Iterable[Tensor]) -> None:
        """Add tensors to the state, whose memory compiled code reads."""
        self._tensors = list(tensors)
        self._places = self._find_places()

    def holds(self) -> bool:
        """Return whether nothing has changed; values that were replaced by equal ones may count as unchanged."""
        try:
            contents = list(self._find_contents())
            return (
                list(map(type, self._modules)) == self._kinds
                and list(map(vars, self._owners)) == self._attributes
                and not any(self._empty)
                and len(contents) == len(self._contents)
                and all(map(is_, contents, self._contents))
                and self._find_called() == self._called
                and self._find_places() == self._places
            )
        except (RuntimeError, ValueError):  # a new value that cannot be compared, or a tensor without an address
            return False

    def _find_contents(self) -> Iterable[Any]:
        return chain.from_iterable(map(dict.values, self._containers))

    def _find_called(self) -> list[Any]:
        """Return the functions that calls of the modules run."""
        everywhere = (module_hooks._global_forward_hooks, module_hooks._global_forward_pre_hooks)
        own = (function for kind in self._different_kinds for function in (kind.forward, kind.__call__))
        return [*own, *self._beside(), *chain.from_iterable(map(dict.values, everywhere))]

    def _find_places(self) -> list[Any]:
        found = self._tensors
        return [
            *map(type, found),
            *map(Tensor.data_ptr, found),
            *map(Tensor.is_contiguous, found),
            *map(_FORM, found),
        ]


class ParametersState:
    """The parameters of some modules: which tensors they are, where they lie, and how often torch has changed them."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        """Record the state."""
        self._containers = [module._parameters for module in modules]
        self._contents = list(self._find_contents())
        self._tensors = [each for each in self._contents if each is not None]
        self._counted = [each for each in self._tensors if not each.is_inference()]  # others have no version
        self._places, self._versions = list(map(Tensor.data_ptr, self._tensors)), list(map(_VERSION, self._counted))

    def holds(self) -> bool:
        """Return whether nothing has changed."""
        contents = list(self._find_contents())
        return (
            len(contents) == len(self._contents)
            and all(map(is_, contents, self._contents))
            and list(map(Tensor.data_ptr, self._tensors)) == self._places
            and list(map(_VERSION, self._counted)) == self._versions
        )

    def _find_contents(self) -> Iterable[Any]:
        return chain.from_iterable(map(dict.values, self._containers))
