"""A transformers model as an engine: passes over its sequences, one or several at once.

The model is checked again before every request, since hooks, adapters, the attention and much else may have changed
since it was probed. If drafts cannot be verified, sequences are decoded by the model's own methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from speculant.core.drafter import EncoderSource
from speculant.core.engine import NO_OUTPUTS, Pass, RequestedOutputs
from speculant.core.errors import OutOfMemoryError, UnsupportedError, UsageError
from speculant.core.prepared_request import PreparedRequest
from speculant.core.tree import UNLIMITED, DraftTree, Int32
from speculant.engines.hf.acceleration import Acceleration, PlainPasses
from speculant.engines.hf.batch_pass import BatchPass
from speculant.engines.hf.cache import (
    compact_cache,
    copy_prefix,
    crop_cache,
    held_bytes,
    holds_sources,
    reusable_length,
)
from speculant.engines.hf.caches.plain_cache import PlainTargetCache
from speculant.engines.hf.encoded import find_source
from speculant.engines.hf.forward_pass import ModelRunner
from speculant.engines.hf.latency_facts import find_latency_facts
from speculant.engines.hf.media import media_tokens
from speculant.engines.hf.opening import AnySequence, open_sequence
from speculant.engines.hf.probe.capabilities import HFCapabilities
from speculant.engines.hf.probe.class_checks import STATE_ON_MODULES, check_model, plain_capabilities
from speculant.engines.hf.probe.first_prompt import FirstPromptCheck
from speculant.engines.hf.probe.live_check import CheckedRows, LiveCheck
from speculant.engines.hf.probe.outcome import PaddingOutcome
from speculant.engines.hf.probe.padding import padding_outcome
from speculant.engines.hf.probe.probing import merge, probe_outcome
from speculant.engines.hf.probe.rounds import ROW_COUNTS
from speculant.engines.hf.probe.watched_state import WatchedState
from speculant.engines.hf.sampling.generate_capture import GenerateCall, check_alone, make_request, prepare_call
from speculant.engines.hf.sampling.repeated_calls import RepeatedCalls
from speculant.engines.hf.sampling.settled_options import settle_options
from speculant.engines.hf.views.unwrapping import acts_inside_generate, adapter_reason, bare_model, check_generates


class HFEngine:
    """Runs passes of a transformers model without gradients; see `core.engine.Engine`."""

    def __init__(
        self,
        model: Any,
        *,
        entry: Any = None,
        acceleration: Acceleration | None = None,
        notes: Sequence[str] = (),
        strict: bool = True,
    ) -> None:
        """Determine the model's capabilities.

        Args:
            model: a model with a language-model head.
            entry: the model that wraps it and whose `generate` defines the text: PEFT's, or one with media whose class
                delegates writing to this model; None for the model itself.
            acceleration: the prepared model; None for its own passes.
            notes: messages for the user, in addition to the model's own.
            strict: whether to refuse a model on which drafts cannot be verified; otherwise it is decoded plainly.

        Raises:
            UnsupportedError: the model cannot be decoded; or, with `strict`, drafts cannot be verified on it.
        """
        check_generates(model)
        self.acceleration = PlainPasses() if acceleration is None else acceleration
        self.entry, self._strict, self._notes = model if entry is None else entry, strict, tuple(notes)
        self._state: tuple[Any, ...] | None = None
        self._padding: PaddingOutcome | None = None
        self.changes = 0  # number of detected model changes; earlier results become invalid with each
        self._largest = ROW_COUNTS[-1]
        self._latest: list[Any] = []  # see `PlainTargetCache`
        self._runner = ModelRunner(model, self._find_capabilities(model), self.acceleration)
        self._watched = WatchedState(model)
        self._batch = BatchPass(self._runner)
        self._live, self._first = LiveCheck(self._runner), FirstPromptCheck(self._runner)
        self._calls = RepeatedCalls(model)
        self._rows_to_check: CheckedRows | None = None

    @property
    def works_in_thread(self) -> bool:
        return self.device.type == "cpu"

    @property
    def name(self) -> str:
        return "transformers"

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def rounding(self) -> None:
        """None: logits have the dtype of passes."""

    @property
    def latency_facts(self) -> tuple[object, ...]:
        return find_latency_facts(self.model, self.acceleration)

    def probe(self, *, rows: int = ROW_COUNTS[-1]) -> None:
        """Check that passes with drafts and over several sequences leave the model's logits unchanged; see `probe`.

        Nothing is done if the model has not changed since the last call. The capabilities, also those of open
        sequences, are narrowed to what works.

        Args:
            rows: maximum rows per pass.

        Raises:
            UnsupportedError: the engine is strict, and drafts cannot be verified on the model.
            OutOfMemoryError: the device is full.
        """
        runner = self._runner
        while self._largest < rows:  # doubled, so that few sizes are probed
            self._largest *= 2
        state = (adapter_reason(self.entry), self._largest, self._watched.find())
        if state == self._state:
            return
        if self._state is None or (state[0], state[2]) != (self._state[0], self._state[2]):
            self.changes += 1
        found = self._find_capabilities(runner.model)
        if found.drafts and not found.encoder:  # encoders are checked by their first prompt
            with torch.random.fork_rng():  # a model in training mode uses the default random streams
                outcome = probe_outcome(
                    runner.model, found, self.acceleration, entry=self._defining_entry, largest=self._largest
                )
            found = merge(found, outcome, type(runner.model).__name__)
            self._refuse(found)
        runner.capabilities, self._state, self._padding = found, state, None
        runner.locate()
        self._batch, self._live, self._first = BatchPass(runner), LiveCheck(runner), FirstPromptCheck(runner)
        self._calls = RepeatedCalls(runner.model)

    @property
    def reads_padding(self) -> bool:
        return self._padding_outcome().read

    def _padding_outcome(self) -> PaddingOutcome:
        """Return what padding changes on the model as it was last probed; examined at the first padded prompt."""
        if self._padding is None:
            with torch.random.fork_rng():
                self._padding = padding_outcome(self._runner, entry=self._defining_entry)
        return self._padding

    @property
    def _defining_entry(self) -> Any:
        """The wrapper whose `generate` defines the text; None if that cannot read text alone."""
        return self.entry if self.whole is self.model else None

    def _find_capabilities(self, model: Any) -> HFCapabilities:
        """Return the capabilities promised by the class, config and adapter.

        Raises:
            UnsupportedError: there are none, and the engine is strict.
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
        """Messages for the user about the model, its preparation, its drafter and its batches so far."""
        notes = (*self.capabilities.notes, *self.acceleration.notes, *self._notes)
        if not self.capabilities.drafts:
            return notes
        return (*notes, *(note for note in (self.batch_note, self._batch.prompt_note) if note))

    @property
    def batch_note(self) -> str:
        """Why the sequences of a batch run one after the other; empty if they do not."""
        return self._batch.note

    @property
    def texts_at_once(self) -> int:
        """The number of texts that may be decoded in turns: one if the model keeps their state on its modules."""
        shared = self.model.config.model_type in STATE_ON_MODULES and not self.capabilities.drafts
        return 1 if shared else UNLIMITED

    @property
    def defaults(self) -> Mapping[str, Any]:
        own: Mapping[str, Any] = vars(self.model.generation_config)
        return own

    @property
    def placeholders(self) -> list[int]:
        found = media_tokens(self.whole.config) if self.capabilities.media else {}
        return [token for ids in found.values() for token in ids]

    def prepare(
        self,
        ids: Tensor,
        *,
        max_new_tokens: int,
        cache: Any,
        options: Mapping[str, Any],
        constrained: bool = False,
    ) -> PreparedRequest:
        """Return what the model's own `generate` prepares for its decoding loop; see `ModelEngine.prepare`."""
        if acts_inside_generate(self.entry):
            raise UnsupportedError(
                "the active adapter is in effect only while its own `generate` runs; use "
                "`model.generate(..., custom_generate=speculator)`."
            )
        settled = settle_options(self.model.generation_config, ids, options, constrained=constrained)
        call = self._prepare_call(ids, max_new_tokens, cache, settled.options)
        return make_request(call, stop=settled.stop, notes=settled.notes)

    def _prepare_call(self, ids: Tensor, max_new_tokens: int, cache: Any, options: Mapping[str, Any]) -> GenerateCall:
        repeats = cache is None and self.entry is self.model
        if repeats and (found := self._calls.find(ids, options, max_new_tokens=max_new_tokens)) is not None:
            return found
        given = {} if cache is None else {self.capabilities.cache_argument: cache}
        call = prepare_call(self.entry, ids, max_new_tokens=max_new_tokens, **given, **options)
        if repeats:
            self._calls.keep(call, ids, options, max_new_tokens=max_new_tokens)
        if self.model.config.is_encoder_decoder:
            given = {name: value for name, value in options.items() if isinstance(value, Tensor)}
            call.source = {"input_ids": ids, **given}
        return call

    def contains(self, model: Any) -> bool:
        return any(model is each for each in self.whole.modules())

    def obstacle(self, prepared: PreparedRequest) -> str:
        return self.call_obstacle(prepared.own)

    def call_obstacle(self, call: GenerateCall) -> str:
        """Return why drafts cannot be verified on a call although the model supports them; "" if they can."""
        if self._is_unusual(call):
            return self._first.reason(call)
        if call.prepare_inputs is not None:
            return "its inputs are prepared by code other than the model's own"
        if holds_sources(call.cache, self.capabilities.source_layers):
            return "the text continues from a cache with an image, but does not say which rows see it"
        if not self.capabilities.text_alone:
            return "the model reads no text without media"
        if call.padding is None or bool(call.padding[:, call.start :].all()):
            return ""
        found = self._padding_outcome()
        wrong = not found.drafts and (len(call.ids) == 1 or found.read)  # rows of a batch are read without padding
        return "padding in front of a text changes this model's logits on drafts" if wrong else ""

    def find_source(self, prepared: PreparedRequest) -> EncoderSource | None:
        return find_source(prepared.own)

    def _is_unusual(self, call: GenerateCall) -> bool:
        """Return whether a prompt has more than text."""
        capabilities = self.capabilities
        return capabilities.encoder or (capabilities.media and bool(set(call.others) - {"use_cache"}))

    def open_prepared(self, prepared: PreparedRequest, *, plain: bool) -> AnySequence | PlainTargetCache:
        """Return the cache of a request; a plain one is decoded by the model's own methods.

        Raises:
            UnsupportedError: it asks for something that is not decoded here.
        """
        call: GenerateCall = prepared.own
        check_alone(call, plain=plain or self.capabilities.media)  # media: all of its inputs are supported
        return PlainTargetCache(call, self._latest) if plain else self.open_call(call)

    def open_call(self, call: GenerateCall) -> AnySequence:
        """Return the cache of a call on which drafts can be verified."""
        return self._first.open(call) if self._is_unusual(call) else self.open(**call.text())

    def open(
        self,
        ids: Tensor,
        *,
        cache: DynamicCache | None = None,
        padding: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> AnySequence:
        """Return a new sequence that has read nothing but the given cache.

        Args:
            ids: Int64[1, T], the whole prompt, including its cached part.
            cache: cache of its first tokens, fewer than T.
            padding: Int64[1, T], 0 at padding, or None.
            positions: Int64[1, T] or of the uncached part; None to count the unpadded tokens.

        Raises:
            UnsupportedError: this kind of cache cannot be rolled back.
        """
        return open_sequence(self._runner, ids, cache=cache, padding=padding, positions=positions)

    def crop(self, cache: DynamicCache, length: int) -> int:
        """Keep the first tokens of a cache for a prompt that shares only those; return their number, see `reusable`."""
        return crop_cache(cache, length)

    def reusable(self, cache: DynamicCache, length: int) -> int:
        """Return how many of a cache's first tokens a prompt can reuse.

        All of them, except with layers of states: these are known only at the end of the text and of its prompt.
        """
        return reusable_length(cache, length)

    def copy_prefix(self, cache: DynamicCache, length: int, *, room: int) -> DynamicCache:
        """Return a copy of the first reusable tokens of a cache, with a capacity of `room` rows.

        Raises:
            OutOfMemoryError: the device is full.
        """
        try:
            return copy_prefix(cache, length, room=room)
        except torch.OutOfMemoryError as error:
            raise OutOfMemoryError("the device is full; lower `prefix_cache` or the batch's size.") from error

    def held_bytes(self, cache: DynamicCache) -> int:
        """Return the size of a cache in bytes."""
        return held_bytes(cache)

    def compact_cache(self, cache: DynamicCache) -> DynamicCache:
        """Return a cache, or a compact copy if much of its memory is unused."""
        return compact_cache(cache)

    def prepare_check(self, batch: Sequence[tuple[AnySequence, int, DraftTree]]) -> None:
        self._rows_to_check = self._live.prepare([(cache, root, tree) for cache, root, tree in batch if len(tree)])

    def forward(
        self, batch: Sequence[tuple[AnySequence, int, DraftTree]], needs: RequestedOutputs = NO_OUTPUTS
    ) -> list[Pass]:
        if any(cache.uncommitted for cache, _, _ in batch):
            raise UsageError("a cache has rows that were neither kept nor dropped; roll it back before a target pass.")
        checked, self._rows_to_check = self._rows_to_check, None
        passes = self._run([(cache, *tree.rows(root)) for cache, root, tree in batch], needs)
        for (cache, _, _), result in zip(batch, passes, strict=True):
            if checked is not None and cache is checked.cache:
                self._live.compare(checked, result)
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
        if not arrays:
            return []
        if len({array.dtype for array in arrays}) == 1:  # one transfer
            joined, ends = torch.cat(list(arrays)).tolist(), np.cumsum([len(array) for array in arrays]).tolist()
            return [joined[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        on_host = [array.to("cpu", non_blocking=True) for array in arrays]
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return [array.tolist() for array in on_host]
