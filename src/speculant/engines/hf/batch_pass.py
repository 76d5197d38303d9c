"""One pass over several sequences: their rows lie one behind the other, and each attends to its own cache alone.

A sequence brings as many rows as its draft has, and a cache as long as its text, so nothing is padded. The model runs
on a single sequence of all rows: whatever it does to a row by itself (products, norms, experts) is done for all at
once. Only where rows attend to each other they are kept apart: keys and values go into the caches of their sequences,
and the model's own attention runs once for each of them, in the shapes it has when the sequence is decoded alone.

The rows are separated at two of transformers' seams, the cache's `update` and the attention function that the config
names, and only for the length of a pass. A model that does not go through them is run sequence by sequence.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from speculant.core.engine import NO_NEEDS, Needs, Pass
from speculant.core.errors import OutOfMemoryError
from speculant.core.tree import Int32
from speculant.engines.hf.forward_pass import ModelRunner, PassInput, as_ids, finished_pass
from speculant.engines.hf.target_cache import HFTargetCache, NewRows

_OWN_WAY = "its layers attend in a way of their own."
_FULL, _SLIDING = 1, 2  # the shape of a stand-in for masks shows which kind of layer it was given to

Request = tuple[HFTargetCache, Int32, Int32]  # a sequence, the tokens of its new rows and their parents


class BatchPass:
    """Passes over any sequences of one model. Not for several threads at once."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._proven, self._refused = False, False
        self.note = ""  # why sequences are run one after the other; empty if they are not
        if not runner.capabilities.trees:
            self.note = "this model verifies chains only, so the sequences of a batch are run one after the other."

    def forward(self, requests: Sequence[Request], needs: Needs = NO_NEEDS) -> list[Pass]:
        """Run one pass over several sequences' new rows and append them; return the Pass of each.

        Every cache must be given `keep` or `rollback` afterwards, also where this raises.
        """
        limit = self._runner.capabilities.rope_limit
        late = [limit is not None and cache.position >= limit for cache, _, _ in requests]
        found: dict[int, Pass] = {}
        for side in (False, True):  # all rows of a pass are rotated by the same factors
            places = [place for place, each in enumerate(late) if each is side]
            found |= zip(places, self._pass([requests[place] for place in places], needs), strict=True)
        return [found[place] for place in range(len(requests))]

    def _pass(self, requests: Sequence[Request], needs: Needs) -> list[Pass]:
        if self.note or len(requests) < 2:
            return _one_after_the_other(requests, needs)
        planned = [cache.plan(tokens, parents, explicit=True) for cache, tokens, parents in requests]
        try:
            found = self._together(requests, planned, needs)
        except BaseException as error:
            for cache, _, _ in requests:
                cache.drop_unplanned()
            if self._proven or isinstance(error, OutOfMemoryError) or not isinstance(error, Exception):
                raise
            passes = _one_after_the_other(requests, needs)  # else the passes are not what is wrong
            if self._refused:
                self.note = (
                    f"the sequences of a batch are run one after the other, since this model refuses them: {error}"
                )
            self._refused = True  # the next round tries again: it may have been a passing error
            return passes
        self._proven = True
        for (cache, _, _), new in zip(requests, planned, strict=True):
            cache.appended(new)
        return found

    def _together(self, requests: Sequence[Request], planned: Sequence[NewRows], needs: Needs) -> list[Pass]:
        counts = [len(new.ids) for new in planned]
        device, model = self._runner.model.device, self._runner.model
        ids, positions = (
            as_ids(np.concatenate(each)).to(device)
            for each in zip(*((new.ids, new.positions) for new in planned), strict=True)
        )
        caches = _Caches([cache.cache for cache, _, _ in requests], counts)
        attention = _Attention(caches, [new.mask for new in planned])
        total = sum(cache.length + len(new.rows) for (cache, _, _), new in zip(requests, planned, strict=True))
        with _attending(model, attention):
            given = PassInput(ids, positions, self._stand_in())
            output = self._runner.verify(given, caches, needs=needs, total=total)
        if attention.calls != caches.updates or not attention.calls:
            raise RuntimeError(_OWN_WAY)
        return _split(finished_pass(output, needs), counts)

    def _stand_in(self) -> Any:
        """Return masks that say nothing but which kind of layer they are for."""
        full, sliding = (torch.zeros((1, 1, 1, kind), device=self._runner.model.device) for kind in (_FULL, _SLIDING))
        if self._runner.capabilities.mixed:
            return {"full_attention": full, "sliding_attention": sliding}
        return full if self._runner.capabilities.window is None else sliding


def _one_after_the_other(requests: Sequence[Request], needs: Needs) -> list[Pass]:
    return [cache.forward(tokens, parents, needs=needs) for cache, tokens, parents in requests]


def _split(whole: Pass, counts: Sequence[int]) -> list[Pass]:
    """Return each sequence's rows of a pass."""
    ends = np.cumsum(counts).tolist()
    parts = [slice(end - count, end) for count, end in zip(counts, ends, strict=True)]
    return [
        Pass(
            logits=whole.logits[part],
            hidden=None if whole.hidden is None else whole.hidden[part],
            top_ids=None if whole.top_ids is None else whole.top_ids[part],
            top_logits=None if whole.top_logits is None else whole.top_logits[part],
        )
        for part in parts
    ]


class _Caches(DynamicCache):  # type: ignore[misc]
    """The caches of several sequences: takes a layer's new rows, [1, H, n, D], and hands each its own."""

    def __init__(self, caches: list[DynamicCache], counts: list[int]) -> None:
        super().__init__()
        self.caches, self.counts = caches, counts
        self.updates, self.layer = 0, 0
        self.returned: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """Write the rows, and return them as they came: the attention looks into the caches itself."""
        split = (torch.split(states, self.counts, dim=-2) for states in (key_states, value_states))
        for cache, keys, values in zip(self.caches, *split, strict=True):
            cache.update(keys, values, layer_idx)
        self.updates, self.layer = self.updates + 1, layer_idx
        self.returned = key_states, value_states
        return self.returned

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the longest sequence's tokens."""
        return max(int(cache.get_seq_length(layer_idx)) for cache in self.caches)


class _Attention:
    """Stands in for a model's attention function: runs it for each sequence's rows on that sequence's cache."""

    def __init__(self, caches: _Caches, masks: Sequence[Any]) -> None:
        self._caches = caches
        apart = [each if isinstance(each, dict) else {} for each in masks]
        self._masks = {
            _FULL: [own.get("full_attention", mask) for own, mask in zip(apart, masks, strict=True)],
            _SLIDING: [own.get("sliding_attention", mask) for own, mask in zip(apart, masks, strict=True)],
        }
        self.own: Callable[..., Any] | None = None  # None for the `eager_attention_forward` of the model's file
        self.calls = 0

    def __call__(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """Attend; the queries [1, H, n, D] of all sequences give [1, n, H, D]."""
        if self._caches.returned is None or not (key is self._caches.returned[0] and value is self._caches.returned[1]):
            raise RuntimeError(_OWN_WAY)  # what a layer makes of keys and values after `update` would be left out
        own = self.own or sys.modules[type(module).__module__].eager_attention_forward
        masks = self._masks[attention_mask.shape[-1]]
        outputs = []
        for cache, queries, mask in zip(
            self._caches.caches, torch.split(query, self._caches.counts, dim=2), masks, strict=True
        ):
            layer = cache.layers[self._caches.layer]
            outputs.append(own(module, queries, layer.keys, layer.values, mask, **kwargs)[0])
        self.calls += 1
        return torch.cat(outputs, dim=1), None


@contextlib.contextmanager
def _attending(model: Any, attention: _Attention) -> Iterator[None]:
    """Let a model's layers attend through this for a while."""
    config = model.config
    before = config._attn_implementation
    attention.own = ALL_ATTENTION_FUNCTIONS.get(before)
    name = f"speculant-{id(attention)}"  # several models may run at once
    ALL_ATTENTION_FUNCTIONS[name] = attention
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before
        ALL_ATTENTION_FUNCTIONS.pop(name, None)
