"""How the mixers of a model family get the states of a sequence, wherever the family keeps them.

The model's own pass over a prompt or a single token reads and writes the states of the sequence's layers (`layers.py`);
a pass over draft rows reads and records them. Both run the class's own code.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers.cache_utils import DynamicCache

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.states.layers import StateLayer
from speculant.engines.hf.states.recorder import StateRecorder
from speculant.engines.hf.views.model_view import twin


@dataclass(frozen=True, slots=True)
class Adapter:
    """For mixers that read their states from a cache, and call convolutions and recurrences by name.

    Attributes:
        kind: the class that they accept as a cache.
    """

    kind: Any = DynamicCache

    @property
    def on_modules(self) -> bool:
        """Whether mixers keep states on themselves, so that the model's own passes need views too."""
        return False

    @property
    def stored(self) -> type[DynamicCache]:
        """The kind of cache that holds a sequence's layers."""
        stored: type[DynamicCache] = self.kind
        return stored

    def record_mixer(self, mixer: nn.Module, layer: int, recorder: StateRecorder) -> nn.Module:
        """Return a view of a mixer whose states are recorded.

        Args:
            mixer: the module.
            layer: the index of its decoder layer.
            recorder: the recorder of the pass.

        Raises:
            UnsupportedError: the mixer's forward was replaced, or its weights are moved in and out.
        """
        return with_functions(mixer, recorder.functions)

    def own(self, mixer: nn.Module, layer: StateLayer) -> nn.Module:
        """Return the module for the model's own passes: the mixer, or a view that reads and writes a layer's states.

        Raises:
            UnsupportedError: a view is needed, and the mixer's forward was replaced.
        """
        return mixer

    def give_cache(self, cache: DynamicCache) -> DynamicCache:
        """Return the object passed as the cache in the model's own passes."""
        return cache


def with_functions(mixer: nn.Module, functions: Mapping[str, Any]) -> nn.Module:
    """Return a view of a module whose forward calls these functions in place of those of the same names in its file.

    Raises:
        UnsupportedError: its forward was replaced, or its weights are moved in and out.
    """
    view = recordable(mixer)
    own = inspect.unwrap(type(mixer).forward)
    changed = types.FunctionType(
        own.__code__, {**own.__globals__, **functions}, own.__name__, own.__defaults__, own.__closure__
    )
    changed.__kwdefaults__ = own.__kwdefaults__
    view.__dict__["forward"] = types.MethodType(changed, view)
    return view


def recordable(mixer: nn.Module, **modules: nn.Module) -> nn.Module:
    """Return a view of a mixer with some of its submodules replaced.

    Raises:
        UnsupportedError: its forward was replaced, or its weights are moved in and out.
    """
    if "forward" in mixer.__dict__ or any(hasattr(child, "_hf_hook") for child in mixer.children()):
        raise UnsupportedError(f"the forward of {type(mixer).__name__} was replaced, so its states cannot be recorded.")
    return twin(mixer, modules=modules)


@functools.cache
def cache_class(own: Any, kind: Any) -> Any:
    """Return one of our cache classes in a form accepted by models that require their own kind of cache."""
    return own if issubclass(own, kind) else type(own.__name__, (own, kind), {})
