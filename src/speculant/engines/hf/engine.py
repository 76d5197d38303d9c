"""A transformers model as an engine: passes of its sequences, alone or several at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from speculant.core.engine import NO_NEEDS, Needs, Pass
from speculant.core.errors import OutOfMemoryError, UsageError
from speculant.core.tree import DraftTree
from speculant.engines.hf.acceleration import Acceleration, PlainPasses
from speculant.engines.hf.batch_pass import BatchPass
from speculant.engines.hf.cache import compacted, copy_prefix, crop_cache, held_bytes
from speculant.engines.hf.capabilities import HFCapabilities, check_model
from speculant.engines.hf.forward_pass import ModelRunner
from speculant.engines.hf.probe import Outcome, merge, probe_outcome
from speculant.engines.hf.target_cache import HFTargetCache


class HFEngine:
    """Runs passes of a transformers model; see `core.engine.Engine`. Its passes need no gradients and compute none."""

    def __init__(self, model: Any, *, acceleration: Acceleration | None = None, notes: Sequence[str] = ()) -> None:
        """Find out what the model can do.

        Args:
            model: a decoder-only causal LM.
            acceleration: the prepared model; None for its own passes.
            notes: what the user should know beside the model's own notes.

        Raises:
            UnsupportedError: drafts cannot be verified on this model; the message gives the reason and the way out.
        """
        self.acceleration = PlainPasses() if acceleration is None else acceleration
        self._runner = ModelRunner(model, check_model(model), self.acceleration)
        self._batch = BatchPass(self._runner)
        self._outcome: Outcome | None = None
        self._notes = tuple(notes)

    @property
    def latency_facts(self) -> tuple[object, ...]:
        """What the latency of passes depends on, beside the model's config, dtype and acceleration: nothing."""
        return ()

    def probe(self, *, drafts: bool) -> None:
        """Check once that drafts, or passes over several sequences, leave the model's logits as they are; see `probe`.

        The capabilities, those of open sequences too, are narrowed to what does.

        Args:
            drafts: whether drafts are to be verified; else only plain passes, which a refused model runs one by one.

        Raises:
            UnsupportedError: drafts cannot be verified on this model; the message gives the reason and the way out.
            OutOfMemoryError: the device is full.
        """
        known = self._outcome
        runner = self._runner
        outcome = probe_outcome(runner.model, runner.capabilities, self.acceleration) if known is None else known
        if drafts or outcome.verdict != "refused":
            if known is None or known.verdict == "refused":
                runner.capabilities = merge(runner.capabilities, outcome, type(runner.model).__name__)
        else:
            runner.capabilities = replace(runner.capabilities, batches=False)
        if known is None:
            self._outcome, self._batch = outcome, BatchPass(runner)

    @property
    def model(self) -> Any:
        """The transformers model."""
        return self._runner.model

    @property
    def capabilities(self) -> HFCapabilities:
        return self._runner.capabilities

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know, of the model, its preparation, its drafter and its batches so far."""
        notes = (*self.capabilities.notes, *self.acceleration.notes, *self._notes)
        return (*notes, *(note for note in (self.batch_note, self._batch.prompt_note) if note))

    @property
    def batch_note(self) -> str:
        """Why the sequences of a batch are run one after the other; empty if they are not."""
        return self._batch.note

    def open(
        self,
        ids: Tensor,
        *,
        cache: DynamicCache | None = None,
        padding: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> HFTargetCache:
        """Return a new sequence, of which nothing but the given cache is read yet.

        Args:
            ids: Int64[1, T], the whole prompt, cached part included.
            cache: what is cached of it already; fewer tokens than T.
            padding: Int64[1, T], 0 at padding, or None.
            positions: Int64[1, T] or of the uncached part, or None to count the unpadded tokens.

        Raises:
            UnsupportedError: the cache is of a kind that cannot be rolled back.
        """
        return HFTargetCache(self._runner, ids, cache=cache, padding=padding, positions=positions)

    def crop(self, cache: DynamicCache, length: int) -> None:
        """Keep the first tokens of a cache, for a prompt that shares only those."""
        crop_cache(cache, length)

    def copy_prefix(self, cache: DynamicCache, length: int, *, room: int) -> DynamicCache:
        """Return a copy of the first tokens of a cache, with room for so many tokens in all.

        Raises:
            OutOfMemoryError: the device is full.
        """
        try:
            return copy_prefix(cache, length, room=room)
        except torch.OutOfMemoryError as error:
            raise OutOfMemoryError("the device is full; lower `prefix_cache` or the batch's size.") from error

    def held_bytes(self, cache: DynamicCache) -> int:
        """Return the bytes that a cache takes."""
        return held_bytes(cache)

    def compacted(self, cache: DynamicCache) -> DynamicCache:
        """Return a cache, or a copy where much of its memory is not in use."""
        return compacted(cache)

    def forward(self, batch: Sequence[tuple[HFTargetCache, int, DraftTree]], needs: Needs = NO_NEEDS) -> list[Pass]:
        if any(cache.uncommitted for cache, _, _ in batch):
            raise UsageError("a cache has rows that were neither kept nor dropped; roll it back before a target pass.")
        requests = [(cache, *tree.rows(root)) for cache, root, tree in batch]
        if len(requests) == 1:
            [(cache, tokens, parents)] = requests
            return [cache.forward(tokens, parents, needs=needs)]
        return self._batch.forward(requests, needs)

    def prefill(self, batch: Sequence[tuple[HFTargetCache, int | None]], needs: Needs = NO_NEEDS) -> list[Pass | None]:
        return self._batch.prefill(batch, needs)

    def read(self, arrays: Sequence[Tensor]) -> list[list[Any]]:
        if len({array.dtype for array in arrays}) == 1:  # one transfer
            joined, ends = torch.cat(list(arrays)).tolist(), np.cumsum([len(array) for array in arrays]).tolist()
            return [joined[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        on_host = [array.to("cpu", non_blocking=True) for array in arrays]
        if self.model.device.type == "cuda":
            torch.cuda.current_stream(self.model.device).synchronize()
        return [array.tolist() for array in on_host]
