"""The cache that a model receives during a recorded pass, apart from transformers' own methods."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicCache

from speculant.engines.hf.states.lightning import LightningState
from speculant.engines.hf.states.recorder import StateRecorder


class RecordedStates:
    """A cache's answers about states during a recorded pass; mixed into transformers' DynamicCache."""

    recorder: StateRecorder

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.recorder.turn_to("conv", layer_idx, state_idx)

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        self.recorder.turn_to("conv", layer_idx, state_idx)
        return conv_states

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.recorder.turn_to("recurrent", layer_idx, state_idx)

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        return recurrent_states

    def get_linear_cache(self, layer_idx: int) -> LightningState:
        self.recorder.turn_to("recurrent", layer_idx, 0)
        return LightningState()

    def set_linear_cache(self, layer_idx: int, linear_cache: LightningState) -> None:
        pass

    def is_recording_past(self, layer_idx: int) -> bool:
        return False


class StateCache(RecordedStates, DynamicCache):  # type: ignore[misc]
    """The cache of one sequence during a recorded pass: its layers, and the states of rows."""

    def __init__(self, cache: DynamicCache, recorder: StateRecorder) -> None:
        super().__init__()
        self.layers, self.layer_class_to_replicate = cache.layers, cache.layer_class_to_replicate
        self.recorder = recorder

    def get_query_offset(self, layer_idx: int = 0) -> Any:
        """Return the offset from the slots 0, 1, ... of the pass's rows to positions, for layers that count slots."""
        return self.recorder.offsets(self.layers[layer_idx].get_seq_length())[1]

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, Any]:
        """Return the number of rows that a layer will hold, and the offset that turns slots into positions."""
        before = self.layers[layer_idx].get_seq_length()
        return before + query_length, self.recorder.offsets(before)[0]
