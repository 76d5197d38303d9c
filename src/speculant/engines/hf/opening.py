"""Selects the kind of cache for a sequence on a model."""

from __future__ import annotations

from torch import Tensor
from transformers.cache_utils import DynamicCache

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.cache import holds_text
from speculant.engines.hf.caches.replay_cache import ReplayTargetCache
from speculant.engines.hf.forward_pass import ModelRunner
from speculant.engines.hf.target_cache import HFTargetCache

AnySequence = HFTargetCache | ReplayTargetCache


def open_sequence(
    runner: ModelRunner,
    ids: Tensor,
    *,
    cache: DynamicCache | None = None,
    padding: Tensor | None = None,
    positions: Tensor | None = None,
) -> AnySequence:
    """Return a new sequence that has read nothing but the given cache; see `HFTargetCache`.

    Raises:
        UnsupportedError: this kind of cache cannot be rolled back.
    """
    if not runner.capabilities.replays:
        return HFTargetCache(runner, ids, cache=cache, padding=padding, positions=positions)
    if cache is not None and holds_text(cache):
        raise UnsupportedError("a text cannot continue from a cache of this model here; leave out `past_key_values`.")
    return ReplayTargetCache(runner, ids, padding=padding, positions=positions)
