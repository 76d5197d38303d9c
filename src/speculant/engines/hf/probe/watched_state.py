"""The state of a model, found anew only if something that it depends on may have changed since the last request.

`state_of` looks at every attribute of every module. Here they are compared with copies of them (`ModulesState`), and
only what such a comparison cannot see is found again each time.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import chain
from typing import Any

from torch import nn

from speculant.engines.hf.modules_state import PARTS, ModulesState
from speculant.engines.hf.probe.model_state import choices_of, code_places, flags_of, state_of, versions_of

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
        if not self._modules.holds():
            self._record()
        return self._state

    def _record(self) -> None:
        model, modules = self._model, list(self._model.modules())
        kinds, attributes = set(map(type, modules)), list(map(vars, modules))
        configs = {id(held["config"]): held["config"] for held in attributes if "config" in held}.values()
        changing = [module for module, held in zip(modules, attributes, strict=True) if _may_change(held)]
        places = code_places(kinds)

        def beside() -> list[Any]:
            versions = chain.from_iterable(map(versions_of, modules))
            looked_up = (dict(vars(place)) for place in places)  # whole, since picking functions takes longer
            return [*map(flags_of, changing), *versions, *choices_of(model, configs), *looked_up]

        # Tensors are compared by their versions: copies of references would keep replaced weights in memory.
        self._state, self._modules = state_of(model), ModulesState(modules, beside, contents=PARTS)


def _may_change(attributes: Mapping[str, Any]) -> bool:
    """Return whether attributes of a module may change in place, besides those of every module."""
    return any(isinstance(value, _CHANGING) and name not in _USUAL for name, value in attributes.items())
