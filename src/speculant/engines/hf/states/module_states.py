"""Mixers that keep their states on themselves, as in RecurrentGemma: every pass runs on views with a sequence's states.

A view of such a mixer has its own attributes, so its forward reads and writes the states of one sequence there, and the
model's modules stay unchanged. The class restarts its convolution in every pass over several tokens, so prompts that
continue a state are recorded, like drafts. And the class starts a one-token prompt with what the previous text left in
its convolution; here it starts empty, as in a new model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.states.adapter import Adapter, recordable
from speculant.engines.hf.states.branching import Branching
from speculant.engines.hf.states.gated_unit import GatedUnit
from speculant.engines.hf.states.layers import StateLayer
from speculant.engines.hf.states.recorder import StateRecorder
from speculant.engines.hf.views.model_view import twin

NAMES = {"conv1d_state", "conv_1d", "rg_lru"}  # used by the forward of such a mixer


class ModuleStatesCache(DynamicCache):  # type: ignore[misc]
    """The cache for classes that look for their states on their modules, where they are not."""

    def update(self, *_: Any, **__: Any) -> Any:
        raise UnsupportedError(
            "this model keeps states on its modules, where those of this cache are not; give the cache to "
            "`Speculator.generate` only."
        )


@dataclass(frozen=True, slots=True)
class ModuleStates(Adapter):
    """For recurrent blocks with a `conv_1d`, a real-gated unit `rg_lru`, and states next to them."""

    @property
    def on_modules(self) -> bool:
        return True

    @property
    def stored(self) -> type[DynamicCache]:
        return ModuleStatesCache

    def give_cache(self, cache: DynamicCache) -> DynamicCache:
        given = DynamicCache()
        given.layers, given.layer_class_to_replicate = cache.layers, cache.layer_class_to_replicate
        return given

    def own(self, mixer: Any, layer: StateLayer) -> Any:
        unit: Any = recordable(mixer.rg_lru)
        view: Any = recordable(mixer, rg_lru=unit)
        unit.__dict__["recurrent_states"] = layer.recurrent_states[0]
        view.__dict__["conv1d_state"] = layer.conv_states[0]

        def forward(*args: Any, **options: Any) -> Any:
            output = type(mixer).forward(view, *args, **options)
            layer.take(view.conv1d_state, unit.recurrent_states)
            return output

        view.__dict__["forward"] = forward
        return view

    def record_mixer(self, mixer: Any, layer: int, recorder: StateRecorder) -> Any:
        convolution, unit = twin(mixer.conv_1d, modules={}), recordable(mixer.rg_lru)
        view: Any = recordable(mixer, conv_1d=convolution, rg_lru=unit)
        weight: Tensor = mixer.conv_1d.weight[:, 0]
        bias: Tensor = mixer.conv_1d.bias
        rows = 0

        def forward(input_states: Tensor, position_ids: Tensor, *args: Any, **options: Any) -> Any:
            nonlocal rows
            rows = input_states.shape[1]
            if rows == 1:  # by its positions the class would mistake this for a pass of its own
                position_ids = position_ids.expand(-1, 2)
            return type(mixer).forward(view, input_states, position_ids, *args, **options)

        def convolve(inputs: Tensor) -> Tensor:
            recorder.turn_to("conv", layer, 0)
            windows = torch.stack(recorder.windows(inputs, weight.shape[-1]), dim=-1)
            return ((windows * weight).sum(dim=-1) + bias).T[None]  # as the class's one-token pass computes it

        def scan(hidden_states: Tensor, recurrent_gate: Tensor, reset: Tensor, **_: Any) -> tuple[Tensor, None]:
            recorder.turn_to("recurrent", layer, 0)
            inputs, gates = hidden_states[0, :rows], (recurrent_gate * ~reset)[0, :rows]

            def grow(record: Any, state: Tensor, branching: Branching, part: slice) -> tuple[GatedUnit, Tensor]:
                return GatedUnit.grown(record, state, branching.new_levels, gates=gates[part], inputs=inputs[part])

            found = torch.cat([*recorder.grown(inputs.shape[1:], grow)])
            return found[None].to(hidden_states.dtype), None

        view.__dict__["forward"], convolution.__dict__["forward"] = forward, convolve
        unit.__dict__["_rnn_scan"] = scan
        return view
