"""A speculator as a decoding method of transformers: `model.generate(..., custom_generate=speculator)`.

A single row is decoded by itself. Several rows become requests of a `Batch`: `generate` prepared them as one call, so
they are split into calls of one row each, decoded together, and recombined as `generate` would return them.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin, PreTrainedTokenizerBase
from transformers.cache_utils import EncoderDecoderCache
from transformers.generation import (
    GenerateDecoderOnlyOutput,
    GenerateEncoderDecoderOutput,
    logits_process,
    stopping_criteria,
)

from speculant.api.batch import Batch, BatchError
from speculant.api.options import check_stop
from speculant.api.result import Generation, Stream
from speculant.core.errors import TokenizerError, UnsupportedError, UsageError
from speculant.core.prepared_request import PreparedRequest
from speculant.decoding.step import DecodingComponents
from speculant.engines.hf.cache import holds_text, usable_cache
from speculant.engines.hf.caches.plain_cache import PlainTargetCache
from speculant.engines.hf.sampling.generate_capture import GenerateCall, check, make_request
from speculant.engines.hf.target_cache import HFTargetCache
from speculant.options.request import RequestOptions

PARTS = (logits_process.LogitsProcessor, stopping_criteria.StoppingCriteria)
OWN = {logits_process.__name__, stopping_criteria.__name__}
STATEFUL = logits_process.SynthIDTextWatermarkLogitsProcessor
OF_A_BATCH = (
    logits_process.EncoderNoRepeatNGramLogitsProcessor,
    logits_process.EncoderRepetitionPenaltyLogitsProcessor,
    logits_process.UnbatchedClassifierFreeGuidanceLogitsProcessor,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bound:
    """A speculator's decoding method; created by `Speculator.bind`.

    Attributes:
        begin: returns a prepared request for decoding.
        drafts: returns whether drafts can be verified on it.
        reads_padding: returns whether padding in front of a row affects its text.
        parts: returns the components that decode a request by itself.
        batch: returns an empty batch of a given size.
        streamer, stop, seed, tokenizer, source: see `Speculator.bind`.
        shows_prompt: whether the streamer gets the prompt first; `generate` has given it to its own.
    """

    begin: Callable[..., Generation]
    drafts: Callable[[PreparedRequest], bool]
    reads_padding: Callable[[], bool]
    parts: Callable[[], DecodingComponents]
    batch: Callable[[int], Batch]
    streamer: Any
    stop: str | Sequence[str] | None
    seed: int | None
    tokenizer: Any
    source: Mapping[str, Any] | None
    shows_prompt: bool = True

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Any:
        """Decode and return what `generate` returns: ids Int64[B, T], or an output object if requested.

        Each of several rows yields the same as a call of its own, in which processors and criteria see its ids Int64[1,
        T], including padding in front, as in `generate`. They are copied for every row, so the originals are unchanged;
        plain functions cannot be copied and are shared. Sampled rows have separate random streams; if `bind` was given
        no seed, theirs are drawn from torch's default stream.

        Shorter rows are filled with pad tokens. There, scores and logits [B, V] of the output object are 0 for the pad
        token and -inf for all others. With several rows its cache is None, since no transformers cache supports rows of
        different lengths.

        Raises:
            UnsupportedError, UsageError: a requested option is not supported; nothing was decoded.
            BatchError: some of several rows failed; it has all their texts.
        """
        if (streamer := _find_dropped("streamer")) is not None and self.shows_prompt:
            if self.streamer not in (None, streamer):
                raise UsageError("`generate` and `bind` were given a streamer each; leave out one of them.")
            own = replace(self, streamer=streamer, shows_prompt=False)
            return own(model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs)
        if _find_dropped("assistant_model") is not None:
            raise UnsupportedError(
                "the speculator drafts, not an assistant: leave out `assistant_model`, and give the model as "
                "`draft_model` where the speculator is made."
            )
        call = GenerateCall()
        call(model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs)
        call.source = self.source
        if input_ids.shape[0] > 1 and not self.drafts(make_request(call)):
            return self._plainly(call)
        rows = [self._alone(call)] if input_ids.shape[0] == 1 else self._together(call)
        return _output(rows, generation_config)

    def _plainly(self, call: GenerateCall) -> Any:
        """Decode several rows with the model's own loop, when no drafts can be verified."""
        check(call, plain=True)
        if self.seed is not None:
            raise UnsupportedError(
                "several rows of a model that is decoded plainly share one random stream; leave out `seed` and use "
                "torch.manual_seed, or call once for each row."
            )
        criteria = stopping_criteria.StoppingCriteriaList(call.criteria)
        if strings := check_stop(self.stop):
            if self.tokenizer is None:
                raise TokenizerError("stop strings need a tokenizer; give one to the speculator or to bind().")
            criteria.append(stopping_criteria.StopStringCriteria(self.tokenizer, list(strings)))
        processors = logits_process.LogitsProcessorList(call.processors)
        return call.model._sample(
            call.ids, processors, criteria, generation_config=call.config, streamer=self.streamer, **call.inputs
        )

    def _alone(self, call: GenerateCall) -> Generation:
        if self.streamer is not None and self.shows_prompt:
            self.streamer.put(call.ids.cpu())
        generation = self._begin(call, self.seed)
        for _ in Stream(generation, self.parts()):
            pass
        return generation

    def _together(self, call: GenerateCall) -> list[Generation]:
        check(call)
        if self.streamer is not None:
            raise UnsupportedError(
                f"a streamer takes one sequence, not {call.ids.shape[0]}. Leave it out, or use `Speculator.batch`, "
                "which yields every text piece by piece."
            )
        read = call.padding is not None and not bool(call.padding.all()) and self.reads_padding()
        rows = [self._begin(row, self._seed(row, place)) for place, row in enumerate(split(call, read))]
        if any(row.sampler.has_criteria and not row.sampler.end_tokens for row in rows):
            raise UnsupportedError(
                "without an end of text transformers pads nothing: rows that a criterion or stop string ended go on "
                "until all have ended. Set eos_token_id, or call once for each row."
            )
        batch = self.batch(len(rows))
        try:
            batch.run([batch.submit(row) for row in rows])
        except BatchError as error:
            raise error from next(iter(error.errors.values()))
        return rows

    def _begin(self, call: GenerateCall, seed: int | None) -> Generation:
        if "inputs_embeds" in call.others and not call.ids[:, call.start :].shape[1]:
            raise UnsupportedError("`inputs_embeds` is not supported here: give token ids as `input_ids`.")
        asked = RequestOptions(streamer=self.streamer, stop=self.stop, seed=seed)
        return self.begin(make_request(call), asked, tokenizer=self.tokenizer)

    def _seed(self, row: GenerateCall, place: int) -> int | None:
        if self.seed is not None:
            return self.seed + place
        return int(torch.randint(1 << 62, (1,))) if row.config.do_sample else None


def split(call: GenerateCall, reads_padding: bool) -> list[GenerateCall]:
    """Split a call into one call [1, T] per row, with its own processors and criteria.

    Args:
        call: a call with several rows.
        reads_padding: whether padding in front of a row is also read, since it affects what follows.

    Raises:
        UnsupportedError: the cache is not empty or of another kind, or a processor or criterion is bound to the batch.
    """
    if holds_text(usable_cache(call.cache)):
        raise UnsupportedError(
            "a filled cache of several sequences cannot be split. Leave out `past_key_values`, or call once for each "
            "row."
        )
    bound = [type(part).__name__ for part in call.processors if isinstance(part, OF_A_BATCH)]
    if bound:
        raise UnsupportedError(
            f"{bound[0]} is made for all sequences at once, which advance by different amounts here. Leave out its "
            "option, or call once for each row."
        )
    return [_row(call, place, reads_padding) for place in range(call.ids.shape[0])]


def _row(call: GenerateCall, place: int, reads_padding: bool) -> GenerateCall:
    row = copy.copy(call)
    row.cache = None
    row.ids = call.ids[place : place + 1]
    row.padding, row.positions = (
        given if given is None or given.shape[0] == 1 else given[place : place + 1]
        for given in (call.padding, call.positions)
    )
    row.start = 0 if row.padding is None or reads_padding else int(row.padding[0].bool().int().argmax())
    row.processors, row.criteria = _parts(call, place)
    return row


def _parts(call: GenerateCall, place: int) -> tuple[list[Any], list[Any]]:
    """Return a row's processors and criteria, whose state no other row modifies."""
    parts = [*call.processors, *call.criteria]
    held = [value for part in parts for value in getattr(part, "__dict__", {}).values()]
    kept = [part for part in parts if _stateless(part)]
    kept += [value for value in held if isinstance(value, torch.nn.Module | PreTrainedTokenizerBase)]
    try:
        # Copied together: a processor and a criterion may share state about the text.
        processors, criteria = copy.deepcopy((call.processors, call.criteria), {id(part): part for part in kept})
    except Exception as error:
        raise UnsupportedError(
            f"every row needs processors and criteria of its own, and these cannot be copied: {error} "
            "Give them a __deepcopy__, or call once for each row."
        ) from error
    return [_for_row(processor, place) for processor in processors], criteria


def _stateless(part: Any) -> bool:
    return isinstance(part, PARTS) and type(part).__module__ in OWN and not isinstance(part, STATEFUL)


def _for_row(processor: Any, place: int) -> Any:
    """Return a processor that knows its row's index in the batch, which a call of one row does not show."""
    own = processor
    if isinstance(processor, logits_process.PrefixConstrainedLogitsProcessor):
        own, allowed = copy.copy(processor), processor._prefix_allowed_tokens_fn
        own._prefix_allowed_tokens_fn = lambda _, ids: allowed(place, ids)
    elif isinstance(processor, logits_process.RepetitionPenaltyLogitsProcessor):
        ignored = getattr(processor, "prompt_ignore_length", None)
        if isinstance(ignored, Tensor):
            own = copy.copy(processor)
            own.prompt_ignore_length = ignored[place : place + 1]
    return own


def _output(rows: Sequence[Generation], config: Any) -> Any:
    samplers = [row.sampler for row in rows]
    pad = -1 if config._pad_token_tensor is None else int(config._pad_token_tensor)  # without one no row ends early
    sequences = torch.nn.utils.rnn.pad_sequence(
        [sampler.ids()[0] for sampler in samplers], batch_first=True, padding_value=pad
    )
    if not config.return_dict_in_generate:
        return sequences
    cache, target = (rows[0].result.cache, rows[0].target) if len(rows) == 1 else (None, None)
    if isinstance(target, PlainTargetCache) or (cache is not None and isinstance(target, HFTargetCache)):
        cache = target.whole_cache
    kind = GenerateEncoderDecoderOutput if isinstance(cache, EncoderDecoderCache) else GenerateDecoderOnlyOutput
    return kind(
        sequences=sequences,
        scores=_steps([sampler.scores for sampler in samplers], pad) if samplers[0].keeps_scores else None,
        logits=_steps([sampler.logits for sampler in samplers], pad) if samplers[0].keeps_logits else None,
        past_key_values=cache,
    )


def _steps(rows: Sequence[Sequence[Tensor]], pad: int) -> tuple[Tensor, ...]:
    """Stack per-step values [1, V] of rows to [B, V] per step; after a row's end only padding is possible."""
    ids = torch.arange(rows[0][0].shape[1], device=rows[0][0].device)
    ended = torch.where(ids == pad, 0.0, -torch.inf)[None]
    return tuple(torch.cat(step) for step in zip_longest(*rows, fillvalue=ended))


def _find_dropped(name: str) -> Any:
    """Return an argument that transformers' `generate` takes but does not pass on to `custom_generate`; else None.

    It is read from the frame of the innermost `generate` that this thread runs: ignored without a word, a streamer
    would leave the thread that reads it waiting.
    """
    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is code:
            return frame.f_locals.get(name)
        frame = frame.f_back
    return None
