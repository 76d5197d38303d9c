"""The state of a model, found anew only if something that it depends on may have changed since the last request.

`state_of` looks at every attribute of every module. Here they are compared with copies of them, by functions that are
compiled themselves; what such a comparison cannot see is found again each time.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import chain
from operator import is_
from typing import Any

from torch import nn

from speculant.engines.hf.probe.model_state import HOOKS, flags_of, state_of, surroundings_of, versions_of

_USUAL = frozenset(vars(nn.Module()))
_CHANGING = (dict, list, set)  # attributes of these types may change in place


class WatchedState:
    """The state of a model, see `state_of`."""

    def __init__(self, model: Any) -> None:
        """Record the state of a model."""
        self._model = model
        self._record()

    def find(self) -> tuple[Hashable, ...]:
        """Return the current state; states of different calls are equal if nothing has changed."""
        if not self._unchanged():
            self._record()
        return self._state

    def _record(self) -> None:
        self._state, self._modules = state_of(self._model), list(self._model.modules())
        self._kinds: list[Any] = list(map(type, self._modules))
        self._attributes = [dict(vars(module)) for module in self._modules]
        self._containers = [held[name] for held in self._attributes for name in ("_modules", *HOOKS)]
        self._contents = list(self._contained())
        self._configs = {id(held["config"]): held["config"] for held in self._attributes if "config" in held}
        self._changing = [
            module
            for module, held in zip(self._modules, self._attributes, strict=True)
            if any(isinstance(value, _CHANGING) and name not in _USUAL for name, value in held.items())
        ]
        self._rest = self._find_rest()

    def _unchanged(self) -> bool:
        try:
            contents = list(self._contained())
            return (
                list(map(type, self._modules)) == self._kinds
                and list(map(vars, self._modules)) == self._attributes
                and len(contents) == len(self._contents)
                and all(map(is_, contents, self._contents))
                and self._find_rest() == self._rest
            )
        except (RuntimeError, ValueError):  # a new value that cannot be compared, such as a tensor
            return False

    def _contained(self) -> chain[Any]:
        return chain.from_iterable(map(dict.values, self._containers))

    def _find_rest(self) -> list[Hashable]:
        kinds = set(self._kinds)
        found: list[Hashable] = [function for kind in kinds for function in (kind.forward, kind.__call__)]
        found += map(flags_of, self._changing)
        found += chain.from_iterable(map(versions_of, self._modules))
        return [*found, surroundings_of(self._model, kinds, self._configs.values())]
