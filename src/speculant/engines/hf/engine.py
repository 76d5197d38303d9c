"""A transformers model as an engine: passes of its sequences, alone or several at once.

Before every request the model is looked at again, since hooks, adapters, the attention and much else may have changed
since it was probed. Where drafts cannot be verified, sequences are decoded by the model's own methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from speculant.core.engine import NO_OUTPUTS, Pass, RequestedOutputs
from speculant.core.errors import OutOfMemoryError, UnsupportedError, UsageError
from speculant.core.tree import UNLIMITED, DraftTree, Int32
from speculant.engines.hf.acceleration import Acceleration, PlainPasses
from speculant.engines.hf.batch_pass import BatchPass
from speculant.engines.hf.cache import (
    compacted,
    copy_prefix,
    crop_cache,
    held_bytes,
    holds_sources,
    reusable_length,
)
from speculant.engines.hf.caches.plain_cache import PlainTargetCache
from speculant.engines.hf.forward_pass import ModelRunner
from speculant.engines.hf.opening import AnySequence, open_sequence
from speculant.engines.hf.probe.capabilities import (
    STATE_ON_MODULES,
    HFCapabilities,
    acts_inside_generate,
    adapter_reason,
    bare_model,
    check_generates,
    check_model,
    plain_capabilities,
)
from speculant.engines.hf.probe.first_prompt import FirstPromptCheck
from speculant.engines.hf.probe.live_check import LiveCheck, Sample
from speculant.engines.hf.probe.model_state import state_of
from speculant.engines.hf.probe.probing import merge, probe_outcome
from speculant.engines.hf.probe.rounds import ROW_COUNTS
from speculant.engines.hf.sampling.generate_capture import Call, prepare_call


class HFEngine:
    """Runs passes of a transformers model; see `core.engine.Engine`. Its passes need no gradients and compute none."""

    def __init__(
        self,
        model: Any,
        *,
        entry: Any = None,
        acceleration: Acceleration | None = None,
        notes: Sequence[str] = (),
        strict: bool = True,
    ) -> None:
        """Find out what the model can do.

        Args:
            model: a model with a language-model head.
            entry: the model around it, whose `generate` says what its text is: PEFT's, or one with media whose class
                lets this model write; None for the model itself.
            acceleration: the prepared model; None for its own passes.
            notes: what the user should know beside the model's own notes.
            strict: whether a model that drafts cannot be verified on is refused; else it is decoded plainly.

        Raises:
            UnsupportedError: the model cannot be decoded; or, if `strict`, drafts cannot be verified on it.
        """
        check_generates(model)
        self.acceleration = PlainPasses() if acceleration is None else acceleration
        self.entry, self._strict, self._notes = model if entry is None else entry, strict, tuple(notes)
        self._state: tuple[Any, ...] | None = None
        self.changes = 0  # how often the model was found to have changed, so that what was computed before is void
        self._largest = ROW_COUNTS[-1]
        self._latest: list[Any] = []  # see `PlainTargetCache`
        self._runner = ModelRunner(model, self._checked(model), self.acceleration)
        self._batch = BatchPass(self._runner)
        self._live, self._first = LiveCheck(self._runner), FirstPromptCheck(self._runner)
        self._sample: Sample | None = None

    @property
    def latency_facts(self) -> tuple[object, ...]:
        """What the latency of passes depends on, beside the model's config, dtype and acceleration: nothing."""
        return ()

    def probe(self, *, rows: int = ROW_COUNTS[-1]) -> None:
        """Check that passes, with drafts and of several sequences, leave the model's logits as they are; see `probe`.

        Nothing is done where the model is as it was at the last call. The capabilities, those of open sequences too,
        are narrowed to what does.

        Args:
            rows: the most that a pass will have.

        Raises:
            UnsupportedError: the model is strict, and drafts cannot be verified on it.
            OutOfMemoryError: the device is full.
        """
        runner = self._runner
        while self._largest < rows:  # doubled, so that few numbers are probed
            self._largest *= 2
        state = (adapter_reason(self.entry), self._largest, state_of(runner.model))
        if state == self._state:
            return
        if self._state is None or (state[0], state[2]) != (self._state[0], self._state[2]):
            self.changes += 1
        found = self._checked(runner.model)
        if found.drafts and not found.encoder:  # which is checked by its first prompt
            with torch.random.fork_rng():  # a model in training mode draws from the default streams
                entry = self.entry if self.whole is runner.model else None  # else it reads no text alone
                outcome = probe_outcome(runner.model, found, self.acceleration, entry=entry, largest=self._largest)
            found = merge(found, outcome, type(runner.model).__name__)
            self._refuse(found)
        runner.capabilities, self._state = found, state
        self._batch, self._live, self._first = BatchPass(runner), LiveCheck(runner), FirstPromptCheck(runner)

    def _checked(self, model: Any) -> HFCapabilities:
        """Return what the class, config and adapter promise.

        Raises:
            UnsupportedError: it is nothing, and the engine is strict.
        """
        try:
            if reason := adapter_reason(self.entry):
                raise UnsupportedError(reason)
            found = check_model(model)
            return found if self.whole is model else replace(found, media=True)
        except UnsupportedError as error:
            found = plain_capabilities(model, str(error))
        self._refuse(found)
        return found

    def _refuse(self, found: HFCapabilities) -> None:
        if self._strict and not found.drafts:
            reason = found.refusal.rstrip(".")
            raise UnsupportedError(f"{reason}. Leave out `strict` to decode it plainly, or use `model.generate`.")

    @property
    def model(self) -> Any:
        """The transformers model."""
        return self._runner.model

    @property
    def whole(self) -> Any:
        return bare_model(self.entry)

    @property
    def capabilities(self) -> HFCapabilities:
        return self._runner.capabilities

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know, of the model, its preparation, its drafter and its batches so far."""
        notes = (*self.capabilities.notes, *self.acceleration.notes, *self._notes)
        if not self.capabilities.drafts:
            return notes
        return (*notes, *(note for note in (self.batch_note, self._batch.prompt_note) if note))

    @property
    def batch_note(self) -> str:
        """Why the sequences of a batch are run one after the other; empty if they are not."""
        return self._batch.note

    @property
    def texts_at_once(self) -> int:
        """How many texts may be decoded in turns: one where the model keeps their state on its modules."""
        shared = self.model.config.model_type in STATE_ON_MODULES and not self.capabilities.drafts
        return 1 if shared else UNLIMITED

    def prepare(self, ids: Tensor, *, max_new_tokens: int, cache: Any, options: Mapping[str, Any]) -> Call:
        """Return what the model's own `generate` prepares for its decoding loop; see `ModelEngine.prepare`."""
        if acts_inside_generate(self.entry):
            raise UnsupportedError(
                "the active adapter is in effect only while its own `generate` runs; use "
                "`model.generate(..., custom_generate=speculator)`."
            )
        given = {} if cache is None else {self.capabilities.cache_argument: cache}
        call = prepare_call(self.entry, ids, max_new_tokens=max_new_tokens, **given, **options)
        if self.model.config.is_encoder_decoder:
            call.source = ids
        return call

    def obstacle(self, prepared: Call) -> str:
        """Return why no drafts can be verified on a request, though the model takes drafts; "" if they can."""
        if self._is_unusual(prepared):
            return self._first.reason(prepared)
        if prepared.prepare_inputs is not None:
            return "its inputs are prepared by code other than the model's own"
        if holds_sources(prepared.cache, self.capabilities.source_layers):
            return "the text continues from a cache with an image, but does not say which rows see it"
        if not self.capabilities.text_alone:
            return "the model reads no text without media"
        if self.capabilities.drafts_padded or prepared.padding is None:
            return ""
        read = len(prepared.ids) == 1 or self.capabilities.reads_padding
        padded = read and not bool(prepared.padding[:, prepared.start :].all())
        return "padding in front of a text changes this model's logits on drafts" if padded else ""

    def _is_unusual(self, prepared: Call) -> bool:
        """Return whether a prompt is more than text."""
        capabilities = self.capabilities
        return capabilities.encoder or (capabilities.media and bool(set(prepared.others) - {"use_cache"}))

    def open_prepared(self, prepared: Call, *, plain: bool) -> AnySequence | PlainTargetCache:
        """Return the cache of a request; the model's own methods decode a plain one."""
        if plain:
            return PlainTargetCache(prepared, self._latest)
        if self._is_unusual(prepared):
            return self._first.open(prepared)
        return self.open(
            prepared.ids[:, prepared.start :],
            cache=prepared.cache,
            padding=None if prepared.padding is None else prepared.padding[:, prepared.start :],
            positions=None if prepared.positions is None else prepared.positions[:, prepared.start :],
        )

    def open(
        self,
        ids: Tensor,
        *,
        cache: DynamicCache | None = None,
        padding: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> AnySequence:
        """Return a new sequence, of which nothing but the given cache is read yet.

        Args:
            ids: Int64[1, T], the whole prompt, cached part included.
            cache: what is cached of it already; fewer tokens than T.
            padding: Int64[1, T], 0 at padding, or None.
            positions: Int64[1, T] or of the uncached part, or None to count the unpadded tokens.

        Raises:
            UnsupportedError: the cache is of a kind that cannot be rolled back.
        """
        return open_sequence(self._runner, ids, cache=cache, padding=padding, positions=positions)

    def crop(self, cache: DynamicCache, length: int) -> int:
        """Keep the first tokens of a cache, for a prompt that shares only those; return how many, see `reusable`."""
        return crop_cache(cache, length)

    def reusable(self, cache: DynamicCache, length: int) -> int:
        """Return how many of the first tokens of a cache a prompt can begin with.

        All of them, but where layers hold states: these are known at the end of the text and of its prompt alone.
        """
        return reusable_length(cache, length)

    def copy_prefix(self, cache: DynamicCache, length: int, *, room: int) -> DynamicCache:
        """Return a copy of the first tokens of a cache, as many as `reusable` says, with room for so many in all.

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

    def sample(self, batch: Sequence[tuple[AnySequence, int, DraftTree]]) -> None:
        self._sample = self._live.sample([(cache, root, tree) for cache, root, tree in batch if len(tree)])

    def forward(
        self, batch: Sequence[tuple[AnySequence, int, DraftTree]], needs: RequestedOutputs = NO_OUTPUTS
    ) -> list[Pass]:
        if any(cache.uncommitted for cache, _, _ in batch):
            raise UsageError("a cache has rows that were neither kept nor dropped; roll it back before a target pass.")
        sample, self._sample = self._sample, None
        passes = self._run([(cache, *tree.rows(root)) for cache, root, tree in batch], needs)
        for (cache, _, _), result in zip(batch, passes, strict=True):
            if sample is not None and cache is sample.cache:
                self._live.compare(sample, result)
        return passes

    def _run(self, requests: Sequence[tuple[AnySequence, Int32, Int32]], needs: RequestedOutputs) -> list[Pass]:
        if len(requests) == 1 or any(isinstance(cache, PlainTargetCache) for cache, _, _ in requests):
            return [cache.forward(tokens, parents, needs=needs) for cache, tokens, parents in requests]
        return self._batch.forward(requests, needs)

    def prefill(
        self, batch: Sequence[tuple[AnySequence, int | None]], needs: RequestedOutputs = NO_OUTPUTS
    ) -> list[Pass | None]:
        return self._batch.prefill(batch, needs)

    def read(self, arrays: Sequence[Tensor]) -> list[list[Any]]:
        if len({array.dtype for array in arrays}) == 1:  # one transfer
            joined, ends = torch.cat(list(arrays)).tolist(), np.cumsum([len(array) for array in arrays]).tolist()
            return [joined[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        on_host = [array.to("cpu", non_blocking=True) for array in arrays]
        if self.model.device.type == "cuda":
            torch.cuda.current_stream(self.model.device).synchronize()
        return [array.tolist() for array in on_host]
