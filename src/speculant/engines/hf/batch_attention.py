"""Attention of a pass over several sequences: each one's rows attend to its own cache.

Such a pass runs on a view of the model (`model_view.py`) whose layers have another config. It names the attention
function `speculant_batch`, which is registered with transformers once and for all, and carries the `BatchCache` of this
one pass. So nothing of it can be seen by another thread or be left behind by an interrupt.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from speculant.engines.hf.cache import cached_length
from speculant.engines.hf.states.recorded_cache import RecordedStates
from speculant.engines.hf.states.recorder import StateRecorder

NAME = "speculant_batch"
FULL, SLIDING = 1, 2  # the last dimension of a stand-in for masks shows which kind of layer it was given to


class BatchSources(DynamicCache):  # type: ignore[misc]
    """What several sequences have read of their encoders' sources, in the place of one such cache during a pass.

    Layers are handed the first one's keys and values, which `BatchCache.attend` knows again.
    """

    def __init__(self, sources: Sequence[DynamicCache]) -> None:
        """Take the cross-attention's caches of the sequences, which are read and never changed."""
        super().__init__()
        self.layers = [*sources[0].layers]
        self._sources = [*sources]

    def rows(self, layer: int) -> list[tuple[Tensor, Tensor]]:
        """Return the keys and values of each sequence's source in a layer."""
        return [(source.layers[layer].keys, source.layers[layer].values) for source in self._sources]


class BatchCache(RecordedStates, DynamicCache):  # type: ignore[misc]
    """The caches of several sequences during one pass, and the attention to them.

    It takes a layer's new rows, [1, H, n, D], and appends each sequence's to its own cache.
    """

    def __init__(
        self,
        caches: Sequence[DynamicCache],
        counts: Sequence[int],
        masks: Sequence[Any],
        own: str,
        recorder: StateRecorder | None = None,
        sources: BatchSources | None = None,
    ) -> None:
        """Prepare for one pass.

        Args:
            caches: of the sequences.
            counts: how many rows each of them has in the pass.
            masks: of each, as its own pass would have it; a dict where the model has two kinds of layers.
            own: the name of the model's own attention function.
            recorder: what layers of states run; None where there are none.
            sources: what their cross-attention has read; None where there is none.
        """
        super().__init__()
        if recorder is not None:
            self.recorder = recorder
        self._caches, self._counts, self._own = list(caches), list(counts), own
        apart = [each if isinstance(each, dict) else {} for each in masks]
        self._masks = {
            FULL: [given.get("full_attention", mask) for given, mask in zip(apart, masks, strict=True)],
            SLIDING: [given.get("sliding_attention", mask) for given, mask in zip(apart, masks, strict=True)],
        }
        self._layer, self._updates, self._attended, self._crossed = 0, 0, 0, 0
        self._sources = sources
        self._returned: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """Append the rows and return them as they are: `attend` reads the caches itself."""
        split = (torch.split(states, self._counts, dim=-2) for states in (key_states, value_states))
        for cache, keys, values in zip(self._caches, *split, strict=True):
            cache.update(keys, values, layer_idx)
        self._layer, self._updates = layer_idx, self._updates + 1
        self._returned = key_states, value_states
        return self._returned

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the longest sequence's tokens."""
        return max(cached_length(cache) for cache in self._caches)

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """Run the model's own attention function for each sequence's rows on that sequence's cache.

        Args:
            module: the attention module.
            query: [1, H, n, D] of all sequences.
            key, value: what `update` returned, or of the source.
            attention_mask: a stand-in, see `stand_in_masks`.
            **kwargs: for the function; a bias by position is a tuple of each sequence's, see `row_positions.py`.

        Returns:
            [1, n, H, D], and no weights.

        Raises:
            RuntimeError: the layer has changed keys and values behind the cache.
        """
        own, bias = attention_function(module, self._own), kwargs.pop("position_bias", None)
        queries = torch.split(query, self._counts, dim=2)
        if self._sources is not None and key is self._sources.layers[module.layer_idx].keys:
            outputs = []
            for rows, (keys, values) in zip(queries, self._sources.rows(module.layer_idx), strict=True):
                if bias is not None:  # T5's have one of zeros there
                    kwargs["position_bias"] = keys.new_zeros(1, rows.shape[1], rows.shape[2], keys.shape[2])
                outputs.append(own(module, rows, keys, values, None, **kwargs)[0])
            self._crossed += 1
            return torch.cat(outputs, dim=1), None
        if self._returned is None or not (key is self._returned[0] and value is self._returned[1]):
            raise RuntimeError("its layers change keys and values behind the cache.")
        if isinstance(bias, Tensor):
            raise RuntimeError("its layers add a bias of their own to the attention.")
        outputs, masks = [], self._masks[attention_mask.shape[-1]]
        for place, (cache, rows, mask) in enumerate(zip(self._caches, queries, masks, strict=True)):
            if bias is not None:
                kwargs["position_bias"] = bias[place]
            outputs.append(own(module, rows, *self.held_rows(cache), mask, **kwargs)[0])
        self._attended += 1
        return torch.cat(outputs, dim=1), None

    def held_rows(self, cache: Any) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a sequence in the layer that was updated last."""
        layer = cache.layers[self._layer]
        return layer.keys, layer.values

    @property
    def separated(self) -> bool:
        """Whether every layer that has appended rows has attended through `attend`."""
        return self._updates == self._attended

    @property
    def complete(self) -> bool:
        """Whether the sequences were separated, by some layer at least."""
        crossed = self._sources is None or self._crossed == len(self._sources.layers)
        return self.separated and crossed and (self._updates > 0 or hasattr(self, "recorder"))


def attention_function(module: Any, name: str) -> Any:
    """Return the attention function of that name as the file of a module's class looks it up; "eager" is its own."""
    home = sys.modules[type(module).__module__]
    functions = getattr(home, "ALL_ATTENTION_FUNCTIONS", ALL_ATTENTION_FUNCTIONS)
    return functions.get(name) or home.eager_attention_forward


def config_changes(cache: BatchCache) -> dict[str, Any]:
    """Return what the config of a view's layers needs for a pass on this cache."""
    if NAME not in ALL_ATTENTION_FUNCTIONS:
        AttentionInterface.register(NAME, _attend)
    return {"_attn_implementation_internal": NAME, "speculant_batch": cache}


def stand_in_masks(device: torch.device, *, mixed: bool, window: int | None) -> Any:
    """Return masks that tell `BatchCache.attend` which kind of layer calls it, and nothing else."""
    full, sliding = (torch.zeros((1, 1, 1, kind), device=device) for kind in (FULL, SLIDING))
    if mixed:
        return {"full_attention": full, "sliding_attention": sliding}
    return full if window is None else sliding


def _attend(module: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    cache: BatchCache = module.config.speculant_batch
    return cache.attend(module, *args, **kwargs)
