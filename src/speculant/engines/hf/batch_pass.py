"""One pass over several sequences: their rows are concatenated, and each sequence attends to its own cache only.

Each sequence contributes the rows of its draft and a cache of its own length, so nothing is padded. The model runs on
a single sequence of all rows: row-wise operations (matrix products, norms, experts) run once for all of them. Only
attention keeps sequences apart: keys and values go into the caches of their sequences, and the model's own attention
runs once per sequence, in the shapes it has when the sequence is decoded alone.

The rows are separated at two extension points of transformers, the cache's `update` and the attention function that
the config names (`batch_attention.py`), or by compiled layers (`cpu/batch_rows.py`). A model that uses neither is run
sequence by sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from speculant.core.engine import NO_OUTPUTS, Pass, RequestedOutputs
from speculant.core.errors import OutOfMemoryError
from speculant.core.tree import Int32
from speculant.engines.hf.batch_attention import BatchCache, BatchSources, config_changes, stand_in_masks
from speculant.engines.hf.draft_rows import NewRows
from speculant.engines.hf.forward_pass import ModelRunner, PassInput, PassOutput, finish_pass
from speculant.engines.hf.opening import AnySequence
from speculant.engines.hf.prompt import PromptPart
from speculant.engines.hf.states.adapter import cache_class
from speculant.engines.hf.states.recorder import RecordedRows, StateRecorder
from speculant.engines.hf.target_cache import HFTargetCache
from speculant.engines.hf.views.model_view import decoder_config

Request = tuple[AnySequence, Int32, Int32]  # a sequence, the tokens of its new rows and their parents
Joining = tuple[HFTargetCache, Int32, Int32]  # a sequence that may share a pass
Reading = tuple[AnySequence, int | None]  # a sequence, and the maximum number of prompt tokens to read


class BatchPass:
    """Passes over any sequences of one model. Not thread-safe."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._proven, self._refused = False, False
        self._refused_prompts = False
        self.note = ""  # why sequences are run one after the other; empty if they share a pass
        self.prompt_note = ""  # the same for prompts
        if not runner.capabilities.trees:
            self.note = "this model verifies chains only, so the sequences of a batch are run one after the other."
        elif not runner.capabilities.batches:
            self.note = "passes over several texts change this model's logits, so they are run one after the other."

    def forward(self, requests: Sequence[Request], needs: RequestedOutputs = NO_OUTPUTS) -> list[Pass]:
        """Run one pass over the new rows of several sequences and append them; return the Pass of each.

        Call `keep` or `rollback` on every cache afterwards, even if this raises.
        """
        groups: dict[int, list[int]] = {}
        if self.note or len(requests) < 2:
            return _one_after_the_other(requests, needs)
        joining = cast("Sequence[Joining]", requests)  # other kinds verify chains only
        for place, (cache, _, _) in enumerate(joining):  # all rows of a pass are rotated by the same factors
            groups.setdefault(self._factors(cache) if cache.joins_rounds else id(cache), []).append(place)
        found: dict[int, Pass] = {}
        for places in groups.values():
            found |= zip(places, self._pass([joining[place] for place in places], needs), strict=True)
        return [found[place] for place in range(len(requests))]

    def prefill(self, requests: Sequence[Reading], needs: RequestedOutputs = NO_OUTPUTS) -> list[Pass | None]:
        """Read further prompt tokens of several sequences, sharing a pass where possible.

        Returns:
            The Pass of each sequence; None for those with more to read.

        Call `restart` on every cache if this raises.
        """
        apart = self.note or self.prompt_note
        joining = [
            (cache, maximum)
            for cache, maximum in requests
            if isinstance(cache, HFTargetCache) and cache.joins and not apart
        ]
        found: dict[AnySequence, Pass | None] = {}
        if len(joining) > 1:
            self._runner.acceleration.check_weights()  # a fraction of a pass, so done once
            parts = [(cache, cache.plan_prompt(maximum, needs)) for cache, maximum in joining]
            try:
                found |= zip((cache for cache, _ in parts), self._read_together(parts, needs), strict=True)
            except OutOfMemoryError:
                raise
            except Exception as error:
                for cache, part in parts:
                    cache.undo_prompt(part)
                if self._refused_prompts:
                    self.prompt_note = f"prompts are read one after the other, since this model refuses them: {error}"
                self._refused_prompts = True  # retried with the next prompts: the error may be transient
        return [found[cache] if cache in found else cache.prefill(maximum, needs=needs) for cache, maximum in requests]

    def _read_together(
        self, parts: Sequence[tuple[HFTargetCache, PromptPart]], needs: RequestedOutputs
    ) -> list[Pass | None]:
        rows = [cache.prompt_rows(part) for cache, part in parts]
        counts = [len(part) for _, part in parts]
        joined = self._join_caches([cache for cache, _ in parts], counts, [each.mask for each in rows])
        ends = np.cumsum(counts).tolist()
        given = PassInput(
            torch.cat([each.ids for each in rows], dim=1),
            torch.cat([each.positions for each in rows], dim=1),
            self._masks(),
        )
        wanted = needs if any(part.needs is needs for _, part in parts) else NO_OUTPUTS
        output = self._runner.run(
            given,
            joined,
            needs=wanted,
            config=config_changes(joined),
            wanted=[end - 1 for end in ends],
            total=sum(part.end for _, part in parts),
        )
        if not joined.complete:
            raise RuntimeError("its layers attend in a way of their own.")
        found = []
        for place, ((cache, part), end) in enumerate(zip(parts, ends, strict=True)):
            hidden = None if output.hidden is None else output.hidden[end - len(part) : end]
            found.append(cache.take_prompt(part, PassOutput(output.logits[place : place + 1], hidden), needs))
        return found

    def _factors(self, cache: HFTargetCache) -> int:
        """Return a number that is equal for sequences whose rows may be rotated together."""
        capabilities = self._runner.capabilities
        if capabilities.rope_limit is None or cache.position < capabilities.rope_limit:
            return -1
        return id(cache) if capabilities.rope_follows or cache.at_limit else -2

    def _pass(self, requests: Sequence[Joining], needs: RequestedOutputs) -> list[Pass]:
        if len(requests) < 2:
            return _one_after_the_other(requests, needs)
        planned = [cache.plan(tokens, parents, explicit=True) for cache, tokens, parents in requests]
        try:
            found = self._together(requests, planned, needs)
        except BaseException as error:
            for cache, _, _ in requests:
                cache.drop_partial()
            if self._proven or isinstance(error, OutOfMemoryError) or not isinstance(error, Exception):
                raise
            passes = _one_after_the_other(requests, needs)  # if this fails too, shared passes are not the cause
            if self._refused:
                self.note = (
                    f"the sequences of a batch are run one after the other, since this model refuses them: {error}"
                )
            self._refused = True  # retried in the next round: the error may be transient
            return passes
        self._proven = True
        for (cache, _, _), new in zip(requests, planned, strict=True):
            cache.appended(new)
        return found

    def _together(self, requests: Sequence[Joining], planned: Sequence[NewRows], needs: RequestedOutputs) -> list[Pass]:
        counts = [len(new.ids) for new in planned]
        caches = [cache for cache, _, _ in requests]
        given = [cache.rows_input(new.ids, new.positions, None) for cache, new in zip(caches, planned, strict=True)]
        recorder, sources = self._recorder(caches, planned), [each.cross for each in given if each.cross is not None]
        joined_sources = BatchSources(sources) if sources else None
        cache = self._join_caches(caches, counts, [new.mask for new in planned], recorder, joined_sources)
        placing = self._runner.capabilities.placing
        total = sum(cache.length + len(new.rows) for (cache, _, _), new in zip(requests, planned, strict=True))
        output = self._runner.verify(
            PassInput(
                torch.cat([each.ids for each in given], dim=1),
                join_positions([each.positions for each in given]),
                self._masks(),
                {name: value for name, value in given[0].others.items() if name != "attention_mask"},  # a source's mask
                joined_sources,
                tuple(cache.places(new) for cache, new in zip(caches, planned, strict=True)) if placing else (),
            ),
            cache,
            needs=needs,
            config=config_changes(cache),
            recorder=recorder,
            total=total,
        )
        if not cache.complete:
            raise RuntimeError("its layers attend in a way of their own.")
        return _split(finish_pass(output, needs), counts)

    def _recorder(self, caches: Sequence[HFTargetCache], planned: Sequence[NewRows]) -> StateRecorder | None:
        if not self._runner.capabilities.states:
            return None
        rows = [RecordedRows(cache.cache, new.rows, len(new.ids)) for cache, new in zip(caches, planned, strict=True)]
        return StateRecorder(rows, self._runner.model.device)

    def _join_caches(
        self,
        caches: Sequence[HFTargetCache],
        counts: Sequence[int],
        masks: Sequence[object],
        recorder: StateRecorder | None = None,
        sources: BatchSources | None = None,
    ) -> BatchCache:
        config = decoder_config(self._runner.model)
        own = self._runner.acceleration.attention_for(getattr(config, "_attn_implementation", None) or "eager")
        mixers, each_cache = self._runner.capabilities.mixers, [each.cache for each in caches]
        if mixers is None:
            return BatchCache(each_cache, counts, masks, own, sources=sources)
        given = [mixers.adapter.give_cache(cache) for cache in each_cache]
        joined: BatchCache = cache_class(BatchCache, mixers.adapter.kind)(given, counts, masks, own, recorder)
        return joined

    def _masks(self) -> object:
        capabilities = self._runner.capabilities
        return stand_in_masks(self._runner.model.device, mixed=capabilities.mixed, window=capabilities.window)


def join_positions(each: Sequence[Tensor]) -> Tensor:
    """Return positions [1, n] and [A, 1, n] of several sequences, concatenated; text has the same on all A axes."""
    axes = max((positions.shape[0] for positions in each if positions.ndim > 2), default=None)
    if axes is not None:
        each = [positions if positions.ndim > 2 else positions.expand(axes, 1, -1) for positions in each]
    return torch.cat([*each], dim=-1)


def _one_after_the_other(requests: Sequence[Request], needs: RequestedOutputs) -> list[Pass]:
    return [cache.forward(tokens, parents, needs=needs) for cache, tokens, parents in requests]


def _split(whole: Pass, counts: Sequence[int]) -> list[Pass]:
    """Split a pass into the rows of each sequence."""
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
