"""One pass over several sequences: their rows lie one behind the other, and each attends to its own cache alone.

A sequence brings as many rows as its draft has, and a cache as long as its text, so nothing is padded. The model runs
on a single sequence of all rows: whatever it does to a row by itself (products, norms, experts) is done for all at
once. Only where rows attend to each other they are kept apart: keys and values go into the caches of their sequences,
and the model's own attention runs once for each of them, in the shapes it has when the sequence is decoded alone.

The rows are separated at two of transformers' seams, the cache's `update` and the attention function that the config
names (`batch_attention.py`). A model that does not go through them is run sequence by sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from speculant.core.engine import NO_NEEDS, Needs, Pass
from speculant.core.errors import OutOfMemoryError
from speculant.core.tree import Int32
from speculant.engines.hf.batch_attention import BatchCache, config_changes, stand_in_masks
from speculant.engines.hf.forward_pass import ModelRunner, PassInput, as_ids, finished_pass
from speculant.engines.hf.target_cache import HFTargetCache, NewRows

Request = tuple[HFTargetCache, Int32, Int32]  # a sequence, the tokens of its new rows and their parents


class BatchPass:
    """Passes over any sequences of one model. Not for several threads at once."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._proven, self._refused = False, False
        self.note = ""  # why sequences are run one after the other; empty if they are not
        if not runner.capabilities.trees:
            self.note = "this model verifies chains only, so the sequences of a batch are run one after the other."
        elif not runner.capabilities.batches:
            self.note = "passes over several texts change this model's logits, so they are run one after the other."

    def forward(self, requests: Sequence[Request], needs: Needs = NO_NEEDS) -> list[Pass]:
        """Run one pass over several sequences' new rows and append them; return the Pass of each.

        Every cache must be given `keep` or `rollback` afterwards, also where this raises.
        """
        groups: dict[int, list[int]] = {}
        for place, (cache, _, _) in enumerate(requests):  # all rows of a pass are rotated by the same factors
            groups.setdefault(self._factors(cache), []).append(place)
        found: dict[int, Pass] = {}
        for places in groups.values():
            found |= zip(places, self._pass([requests[place] for place in places], needs), strict=True)
        return [found[place] for place in range(len(requests))]

    def _factors(self, cache: HFTargetCache) -> int:
        """Return a number that only sequences whose rows may be rotated together share."""
        capabilities = self._runner.capabilities
        if capabilities.rope_limit is None or cache.position < capabilities.rope_limit:
            return -1
        return id(cache) if capabilities.rope_follows or cache.at_limit else -2

    def _pass(self, requests: Sequence[Request], needs: Needs) -> list[Pass]:
        if self.note or len(requests) < 2:
            return _one_after_the_other(requests, needs)
        planned = [cache.plan(tokens, parents, explicit=True) for cache, tokens, parents in requests]
        try:
            found = self._together(requests, planned, needs)
        except BaseException as error:
            for cache, _, _ in requests:
                cache.drop_partial()
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
        device = self._runner.model.device
        ids, positions = (
            as_ids(np.concatenate(each)).to(device)
            for each in zip(*((new.ids, new.positions) for new in planned), strict=True)
        )
        cache = BatchCache(
            [cache.cache for cache, _, _ in requests], counts, [new.mask for new in planned], self._own_attention()
        )
        total = sum(cache.length + len(new.rows) for (cache, _, _), new in zip(requests, planned, strict=True))
        capabilities = self._runner.capabilities
        masks = stand_in_masks(device, mixed=capabilities.mixed, window=capabilities.window)
        output = self._runner.verify(
            PassInput(ids, positions, masks), cache, needs=needs, config=config_changes(cache), total=total
        )
        if not cache.complete:
            raise RuntimeError("its layers attend in a way of their own.")
        return _split(finished_pass(output, needs), counts)

    def _own_attention(self) -> str:
        config = self._runner.model.config.get_text_config(decoder=True)
        return self._runner.acceleration.attention_for(getattr(config, "_attn_implementation", None) or "eager")


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
