"""Attention of a pass over several sequences: the rows of each attend to its own cache.

Such a pass runs on a view of the model (`model_view.py`) whose layers have another config. The config names the
attention function `speculant_batch`, which is registered with transformers once, and carries the `BatchCache` of this
pass. So other threads never see it, and an interrupt leaves nothing behind.
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
FULL, SLIDING = 1, 2  # the last dimension of a stand-in mask identifies the kind of layer


class BatchSources(DynamicCache):  # type: ignore[misc]
    """The cross-attention caches of several sequences, in the place of a single one during a pass.

    Layers are handed the first sequence's keys and values, which `BatchCache.attend` recognises.
    """

    def __init__(self, sources: Sequence[DynamicCache]) -> None:
        """Take the cross-attention caches of the sequences, which are only read."""
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
            caches: the caches of the sequences.
            counts: number of rows of each sequence in the pass.
            masks: the mask of each sequence's own pass; a dict each if the model has two kinds of layers.
            own: the name of the model's own attention function.
            recorder: runs layers with recurrent states; None if there are none.
            sources: the sequences' cross-attention caches; None without cross-attention.
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
        self.prepared: dict[Any, Any] = {}  # what compiled layers share in this pass

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """Append the rows and return them unchanged: `attend` reads the caches itself."""
        split = (torch.split(states, self._counts, dim=-2) for states in (key_states, value_states))
        for cache, keys, values in zip(self._caches, *split, strict=True):
            cache.update(keys, values, layer_idx)
        self._layer, self._updates = layer_idx, self._updates + 1
        self._returned = key_states, value_states
        return self._returned

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the length of the longest sequence."""
        return max(cached_length(cache) for cache in self._caches)

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """Run the model's own attention function for each sequence's rows on that sequence's cache.

        Args:
            module: the attention module.
            query: [1, H, n, D] of all sequences.
            key, value: what `update` returned, or the source's keys and values.
            attention_mask: a stand-in, see `stand_in_masks`.
            **kwargs: for the function; a position bias is a tuple with one bias per sequence, see `row_positions.py`.

        Returns:
            [1, n, H, D], and no weights.

        Raises:
            RuntimeError: the layer has changed keys and values after they were cached.
        """
        own, bias = attention_function(module, self._own), kwargs.pop("position_bias", None)
        queries = torch.split(query, self._counts, dim=2)
        if self._sources is not None and key is self._sources.layers[module.layer_idx].keys:
            outputs = []
            for rows, (keys, values) in zip(queries, self._sources.rows(module.layer_idx), strict=True):
                if bias is not None:  # T5 has a bias of zeros there
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

    def sequences(self, own: str, kind: int) -> list[tuple[DynamicCache, int, Any]] | None:
        """Return each sequence's cache, rows and mask for compiled layers; None if they cannot replace `attend`.

        Args:
            own: the attention function that compiled layers replace.
            kind: the kind of layer, FULL or SLIDING.
        """
        if own != self._own or self._sources is not None or kind not in self._masks:
            return None
        return list(zip(self._caches, self._counts, self._masks[kind], strict=True))

    def attended_elsewhere(self, layer: int) -> None:
        """Record that compiled code appends the rows of a layer to each sequence's cache and attends to it alone."""
        self._layer, self._updates, self._attended = layer, self._updates + 1, self._attended + 1

    def held_rows(self, cache: Any) -> tuple[Tensor, Tensor]:
        """Return a sequence's keys and values in the layer that was updated last."""
        layer = cache.layers[self._layer]
        return layer.keys, layer.values

    @property
    def separated(self) -> bool:
        """Whether every layer that has appended rows has attended through `attend`."""
        return self._updates == self._attended

    @property
    def complete(self) -> bool:
        """Whether the sequences were separated, in at least one layer."""
        crossed = self._sources is None or self._crossed == len(self._sources.layers)
        return self.separated and crossed and (self._updates > 0 or hasattr(self, "recorder"))


def attention_function(module: Any, name: str) -> Any:
    """Return the attention function of that name as the module of a class looks it up; "eager" is the module's own."""
    home = sys.modules[type(module).__module__]
    functions = getattr(home, "ALL_ATTENTION_FUNCTIONS", ALL_ATTENTION_FUNCTIONS)
    return functions.get(name) or home.eager_attention_forward


def config_changes(cache: BatchCache) -> dict[str, Any]:
    """Return the config entries that a view's layers need for a pass on this cache."""
    if NAME not in ALL_ATTENTION_FUNCTIONS:
        AttentionInterface.register(NAME, _attend)
    return {"_attn_implementation_internal": NAME, "speculant_batch": cache}


def stand_in_masks(device: torch.device, *, mixed: bool, window: int | None) -> Any:
    """Return masks that only tell `BatchCache.attend` which kind of layer calls it."""
    full, sliding = (torch.zeros((1, 1, 1, kind), device=device) for kind in (FULL, SLIDING))
    if mixed:
        return {"full_attention": full, "sliding_attention": sliding}
    return full if window is None else sliding


def _attend(module: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    cache: BatchCache = module.config.speculant_batch
    return cache.attend(module, *args, **kwargs)
