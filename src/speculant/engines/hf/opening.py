"""Which kind of cache a sequence on a model gets."""

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
    """Return a new sequence, of which nothing but the given cache is read yet; see `HFTargetCache`.

    Raises:
        UnsupportedError: the cache is of a kind that cannot be rolled back.
    """
    if not runner.capabilities.replays:
        return HFTargetCache(runner, ids, cache=cache, padding=padding, positions=positions)
    if cache is not None and holds_text(cache):
        raise UnsupportedError("no text goes on from a cache of this model here; leave out `past_key_values`.")
    return ReplayTargetCache(runner, ids, padding=padding, positions=positions)
