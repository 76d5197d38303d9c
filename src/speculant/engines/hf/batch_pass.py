"""One pass over several sequences: their rows lie one behind the other, and each attends to its own cache alone.

A sequence brings as many rows as its draft has, and a cache as long as its text, so nothing is padded. The model sees a
single sequence of all rows: whatever it does to a row by itself (products, norms, experts) is done for all at once.
Only where rows look at each other they are told apart: keys and values go into the caches of their sequences, and the
model's own attention runs once for each of them, in the shapes it has when the sequence is decoded alone.

The rows are taken apart at two of transformers' seams, the cache's `update` and the attention function that the config
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

from speculant.core.errors import OutOfMemoryError
from speculant.core.tree import DraftTree
from speculant.engines.hf.capabilities import Abilities, decode_mode
from speculant.engines.hf.cpu.accelerate import Acceleration
from speculant.engines.hf.target import Rows, TransformersTarget, out_of_memory

_OWN_WAY = "its layers attend in a way of their own."
_FULL, _SLIDING = 1, 2  # the shape of a stand-in for masks says which kind of layer it went to

_Request = tuple[TransformersTarget, int, DraftTree]  # a sequence, its root and its draft


class RaggedPass:
    """Passes over any sequences of one model. Not for several threads at once."""

    def __init__(self, model: Any, abilities: Abilities, *, fast: Acceleration | None = None) -> None:
        """Prepare for a model.

        Args:
            model: a causal LM that `check_model` accepted.
            abilities: what it said.
            fast: the model's preparation, or None for its plain passes.
        """
        self._model, self._abilities = model, abilities
        self._fast = Acceleration() if fast is None else fast
        self._proven, self._refused = False, False
        self.note = ""  # why sequences are run one after the other; empty if they are not
        if not abilities.trees:
            self.note = "this model verifies chains only, so the sequences of a batch are run one after the other."

    def verify(
        self, targets: Sequence[TransformersTarget], roots: Sequence[int], trees: Sequence[DraftTree]
    ) -> list[Tensor]:
        """Run one pass over every sequence's root and nodes; return Logits[N + 1, V] of each.

        Every target must be committed or rolled back afterwards, also where this raises.

        Args:
            targets: the sequences, of this model.
            roots: the last committed token of each.
            trees: a draft of each.
        """
        requests = list(zip(targets, roots, trees, strict=True))
        limit = self._abilities.rope_limit
        late = [limit is not None and target.position >= limit for target in targets]
        found: dict[int, Tensor] = {}
        for side in (False, True):  # all rows of a pass are turned by the same factors
            places = [place for place, each in enumerate(late) if each is side]
            found |= zip(places, self._pass([requests[place] for place in places]), strict=True)
        return [found[place] for place in range(len(requests))]

    def _pass(self, requests: Sequence[_Request]) -> list[Tensor]:
        if self.note or len(requests) < 2:
            return self._one_after_the_other(requests)
        try:
            found = self._together(requests)
        except OutOfMemoryError:
            raise
        except Exception as error:
            if self._proven:
                raise
            for target, _, _ in requests:
                target.rollback()
            found = self._one_after_the_other(requests)  # else the passes are not what is wrong
            if self._refused:
                self.note = (
                    f"the sequences of a batch are run one after the other, since this model refuses them: {error}"
                )
            self._refused = True  # the next round tries again: it may have been a hiccup
            return found
        self._proven = True
        return found

    def _one_after_the_other(self, requests: Sequence[_Request]) -> list[Tensor]:
        return [target.verify(root, tree) for target, root, tree in requests]

    def _together(self, requests: Sequence[_Request]) -> list[Tensor]:
        rows = [target.rows(root, tree, full=True) for target, root, tree in requests]
        counts = [len(each.ids) for each in rows]
        device = self._model.device
        ids, positions = (
            torch.from_numpy(np.concatenate(each))[None].to(device)
            for each in zip(*((each.ids, each.positions) for each in rows), strict=True)
        )
        caches = _Caches([target.cache for target, _, _ in requests], counts)
        attention = _Attention(caches, rows)
        with (
            decode_mode(self._model),
            _attending(self._model, attention, self._fast),
            out_of_memory(f"{len(rows)} sequences"),
        ):
            output = self._fast.model_for(self._model, sum(counts))(
                input_ids=ids,
                attention_mask=self._stand_in(),
                position_ids=positions,
                past_key_values=caches,
                use_cache=True,
                return_dict=True,
            )
        if attention.calls != caches.updates or not attention.calls:
            raise RuntimeError(_OWN_WAY)
        return list(torch.split(output.logits[0], counts))

    def _stand_in(self) -> Any:
        """Return masks that say nothing but which kind of layer they are for."""
        full, sliding = (torch.zeros((1, 1, 1, kind), device=self._model.device) for kind in (_FULL, _SLIDING))
        if self._abilities.mixed:
            return {"full_attention": full, "sliding_attention": sliding}
        return full if self._abilities.window is None else sliding


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

    def __init__(self, caches: _Caches, rows: Sequence[Rows]) -> None:
        self._caches = caches
        masks = [each.mask for each in rows]
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
def _attending(model: Any, attention: _Attention, fast: Acceleration) -> Iterator[None]:
    """Let a model's layers attend through this for a while."""
    config = model.config
    before = config._attn_implementation
    attention.own = ALL_ATTENTION_FUNCTIONS.get(fast.attention_for(before))
    name = f"speculant-{id(attention)}"  # several models may run at once
    ALL_ATTENTION_FUNCTIONS[name] = attention
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before
        ALL_ATTENTION_FUNCTIONS.pop(name, None)
