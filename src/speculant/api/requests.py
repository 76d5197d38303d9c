"""Prepares a request for decoding from a prompt and its options.

transformers' own `generate` does the preparation (configs, processors, criteria, cache) and is stopped before its
decoding loop; the result is checked for what our loop supports. Later requests with the same options repeat what it
prepared (`engines/hf/sampling/repeated_calls.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np
import torch

from speculant.api.constraints import CompiledConstraint, Constraint, ConstraintCompiler
from speculant.api.detokenizer import SpecialTokens
from speculant.api.media_prompts import check_inputs, encode_messages, has_media
from speculant.api.options import check_logit_bias, check_number, check_stop
from speculant.api.request_checks import check_options, leave_out_settings, limit_new_tokens
from speculant.api.result import Generation
from speculant.core.drafter import SessionRequest
from speculant.core.errors import PromptError, TokenizerError, UnsupportedError, UsageError
from speculant.core.model_engine import ModelEngine
from speculant.core.stats import Stats
from speculant.core.tree import Int32
from speculant.decoding.sequence import Sequence as DecodedSequence
from speculant.engines.hf.encoded import find_source
from speculant.engines.hf.media import media_tokens
from speculant.engines.hf.sampling.generate_capture import (
    GenerateCall,
    plan_sampling,
    sampling_options,
    sampling_settings,
)
from speculant.engines.hf.sampling.logprobs import TopLogprobs
from speculant.engines.hf.sampling.output_processors import LogitBias, OutputPenalties
from speculant.engines.hf.sampling.sampler import end_tokens, make_sampler
from speculant.options.kinds import read_temperature
from speculant.options.request import RequestOptions
from speculant.registry import METHODS, find_method

WATCHED_CHUNK = 128  # maximum prompt rows whose logits, V floats each, are kept at a time
DRAFTING_STREAM = 1  # spawn key of drafters' random numbers, separate from the sampler's

Message = dict[str, Any]
Prompt = str | Sequence[int] | Sequence[Message] | torch.Tensor | Mapping[str, Any]


class Preparation:
    """Prepares requests to one model."""

    def __init__(self, engine: ModelEngine, tokenizer: Any, *, method: str, processor: Any = None) -> None:
        """Take the parts that all requests share.

        Args:
            engine: engine of the model.
            tokenizer: the model's, or None.
            method: the drafting method's name, for records.
            processor: the model's processor for images and other media; or None.
        """
        self._engine, self._tokenizer, self._method, self._processor = engine, tokenizer, method, processor
        self._compiler = ConstraintCompiler(tokenizer, engine.capabilities.vocabulary)
        heads = method in METHODS and bool(find_method(method).heads)  # heads read the states of every row
        placeholders = media_tokens(engine.whole.config) if engine.capabilities.media and not heads else {}
        self._unread = [token for ids in placeholders.values() for token in ids]

    def request(self, prompt: Prompt, asked: RequestOptions) -> Generation:
        """Prepare a request; its decoding has not started.

        Args:
            prompt: as in `Speculator.stream`.
            asked: options of the request.

        Raises:
            PromptError: the prompt is empty or longer than the model's positions.
            UnsupportedError, UsageError: an option is not supported or invalid.
        """
        options = dict(asked.generation)
        check_options(options, asked)
        temperature = None if asked.temperature is None else read_temperature(asked.temperature)
        bias = check_logit_bias(asked.logit_bias, self._engine.capabilities.vocabulary)
        strings = check_stop(asked.stop)
        ids, media = self._encode(prompt)
        options |= media
        padding = options.get("attention_mask")
        self._check_length(ids, padding)
        positions, taken = self._engine.capabilities.positions, self._positions_taken(ids, padding)
        maximum, notes = limit_new_tokens(ids.shape[1], asked.max_new_tokens, options), list[str]()
        if maximum < 1:
            raise UsageError(f"new tokens must be 1 or more, not {maximum}: see max_new_tokens and max_length.")
        if positions is not None and taken + maximum > positions:
            maximum = positions - taken
            notes.append(f"only {maximum} new tokens: the model has {positions} positions.")
        check_number("min_new_tokens", options.get("min_new_tokens"), minimum=0, maximum=maximum, whole=True)
        options.setdefault("attention_mask", torch.ones_like(ids))
        presence, frequency = asked.presence_penalty or 0, asked.frequency_penalty or 0
        if presence or frequency:
            lowered = OutputPenalties(ids.shape[1], presence=presence, frequency=frequency)
            options["logits_processor"] = [lowered, *options.get("logits_processor", [])]
        own = self._engine.model.generation_config
        if note := leave_out_settings(own, options, constrained=asked.constraint is not None):
            notes.append(note)
        configured = getattr(options.get("generation_config"), "stop_strings", None) or own.stop_strings
        if configured:
            options["stop_strings"] = None  # `generate` has no tokenizer to find them with
            strings = [*strings, *check_stop(configured)]
            if self._tokenizer is None:
                raise TokenizerError("the generation config has stop strings, which need a tokenizer; leave them out.")
        options |= sampling_options(temperature, asked.top_p, asked.top_k, **options)
        call = self._engine.prepare(ids, max_new_tokens=maximum, cache=asked.cache, options=options)
        whole = replace(asked, stop=strings, logit_bias=bias)
        generation = self.from_call(call, whole, tokenizer=self._tokenizer)
        generation.sequence.stats.notes += notes
        if asked.streamer is not None:
            asked.streamer.put(call.ids.cpu())
        return generation

    def from_call(self, call: GenerateCall, asked: RequestOptions, *, tokenizer: Any) -> Generation:
        """Return the request for one row prepared by `generate`.

        Args:
            call: what `generate` prepared.
            asked: options of the request, of which `generate` has applied those that it knows.
            tokenizer: tokenizer for stop strings and text; or None.

        Raises:
            UsageError: it belongs to another model.
            PromptError, UnsupportedError: it cannot be decoded.
        """
        # 1. Whether drafts can be verified on it, and how its tokens are chosen.
        engine = self._engine
        foreign = call.model is not engine.model
        if foreign and not any(call.model is each for each in engine.whole.modules()):
            raise UsageError("this speculator was made for another model; make one with Speculator.from_transformers.")
        undrafted = foreign or not self.drafts(call)
        ids = call.ids[:, call.start :]
        if "inputs_embeds" in call.others and not ids.shape[1]:
            raise UnsupportedError("`inputs_embeds` is not supported here: give token ids as `input_ids`.")
        self._check_length(ids, None if call.padding is None else call.padding[:, call.start :])
        grammar = self._constrain(call, asked)
        plan = plan_sampling(
            call,
            stop=check_stop(asked.stop),
            tokenizer=tokenizer,
            generator=None if asked.seed is None else _generator(engine.model.device, asked.seed),
            plain=undrafted or engine.capabilities.media,  # all of its inputs are supported
        )

        # 2. Its cache, and what its drafts start from.
        cache = engine.open_prepared(call, plain=undrafted)
        if not cache.unread:
            raise PromptError("the cache already holds the whole prompt; add the new tokens to it.")
        sampler, ranked = make_sampler(call.ids, plan), asked.prompt_logprobs is not None
        start = SessionRequest(
            prompt=_read_by_drafters(call, ids[0, self._padding_read(call) :], () if ranked else self._unread),
            sampling=sampling_settings(call),
            seed=_drafting_seed(asked.seed),
            target=cache,
            constraint=grammar,
            tenant=asked.tenant,
            prediction=np.array([] if asked.prediction is None else asked.prediction, np.int32),
            source=None if undrafted else find_source(call),
        )

        # 3. The sequence, and what users see of it.
        notes = list(engine.notes)
        if undrafted and engine.capabilities.drafts:
            reason = "this class lets a model within it write the text" if foreign else engine.obstacle(call)
            notes.append(f"{reason}: decoded plainly, without drafts.")
        sequence = DecodedSequence(
            cache,
            sampler,
            start,
            Stats(method=self._method, prompt_tokens=cache.unread, notes=notes),
            recorder=None if asked.logprobs is None else TopLogprobs(asked.logprobs),
            prompt_recorder=None if asked.prompt_logprobs is None else TopLogprobs(asked.prompt_logprobs, ranks=True),
            plain=asked.plain or undrafted,
            watched=asked.watched,
        )
        chunk = call.config.prefill_chunk_size
        return Generation(
            sequence,
            sampler,
            target=cache,
            tokenizer=tokenizer,
            streamer=asked.streamer,
            special=SpecialTokens(skip=asked.skip_special_tokens, spaced=asked.spaces_between_special_tokens),
            chunk=min(chunk or WATCHED_CHUNK, WATCHED_CHUNK) if ranked else chunk,
        )

    def _constrain(self, call: GenerateCall, asked: RequestOptions) -> Any:
        """Put a constraint's mask and the bias before transformers' processors, in that order, as in vLLM.

        Returns:
            The state of the constraint, or None.
        """
        grammar, first = None, list[Any]()
        if asked.constraint is not None:
            ends = end_tokens(call.criteria)
            grammar = self._compiler.open(asked.constraint, prompt=call.ids.shape[1], ends=ends)
            first.append(grammar)
        if asked.logit_bias:
            first.append(LogitBias(asked.logit_bias, call.ids.device))
        call.processors = [*first, *call.processors]
        return grammar

    @property
    def by_slot(self) -> bool:
        """Whether the model counts positions by cache slot, including padding."""
        return self._engine.capabilities.by_slot

    @property
    def reads_padding(self) -> bool:
        """Whether padding in front of a row affects its text."""
        return self._engine.reads_padding

    def drafts(self, call: GenerateCall) -> bool:
        """Return whether drafts can be verified on a request prepared by `generate`."""
        return self._engine.capabilities.drafts and not self._engine.obstacle(call)

    def compile_constraint(self, constraint: Constraint, ends: Sequence[int] | None) -> CompiledConstraint:
        """Compile a constraint for texts ended by these tokens; None for those in the model's generation config."""
        if ends is None:
            own = self._engine.model.generation_config.eos_token_id
            ends = [] if own is None else [own] if isinstance(own, int) else own
        return self._compiler.compile(constraint, ends=frozenset(ends))

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Return the token ids of chat messages in the model's template, ready for the next answer.

        Raises:
            TokenizerError: there is no tokenizer, or it has no chat template.
        """
        if self._tokenizer is None or not getattr(self._tokenizer, "chat_template", None):
            raise TokenizerError("this model's tokenizer has no chat template; pass the prompt as text.")
        text = self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        begun = self._tokenizer.bos_token is not None and text.startswith(self._tokenizer.bos_token)
        ids: list[int] = self._tokenizer(text, add_special_tokens=not begun)["input_ids"]
        return ids

    def _encode(self, prompt: Prompt) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the ids Int64[1, T] of a prompt, and its other inputs if it has media."""
        if isinstance(prompt, Mapping):
            inputs = check_inputs(prompt)
        elif _is_chat(prompt) and (has_media(prompt) or self._by_processor):
            inputs = encode_messages(self._processor, prompt)
        else:
            return self._encode_text(prompt), {}
        if set(inputs) - {"input_ids", "attention_mask"} and not self._engine.capabilities.media:
            raise UnsupportedError("this model takes text only: leave out images and other media.")
        device = self._engine.model.device
        given = {name: value.to(device) if hasattr(value, "to") else value for name, value in inputs.items()}
        return self._encode_text(given.pop("input_ids")), given

    @property
    def _by_processor(self) -> bool:
        """Whether only the processor has a chat template, so that it also encodes text messages."""
        own = getattr(self._tokenizer, "chat_template", None)
        return not own and bool(getattr(self._processor, "chat_template", None))

    def _encode_text(self, prompt: Prompt) -> torch.Tensor:
        vocabulary = self._engine.capabilities.vocabulary
        if isinstance(prompt, torch.Tensor):
            ids = prompt if prompt.ndim == 2 else prompt[None]
        elif isinstance(prompt, str):
            if self._tokenizer is None:
                raise TokenizerError("this model has no tokenizer; pass the prompt as token ids.")
            if not prompt:
                raise PromptError("the prompt is empty.")
            try:
                prompt.encode()
            except UnicodeEncodeError as error:
                raise PromptError("the prompt has half of a surrogate pair, which is no text.") from error
            ids = torch.tensor([self._tokenizer(prompt)["input_ids"]])
        elif _is_chat(prompt):
            ids = torch.tensor([self.encode_chat(prompt)])
        elif isinstance(prompt, bytes | bytearray):
            raise PromptError("a prompt must be text, token ids or chat messages, not bytes. Decode them first.")
        elif isinstance(prompt, Sequence) and prompt and all(isinstance(each, str) for each in prompt):
            raise PromptError("this prompt is a list of texts; pass one text, or all of them to `generate_batch`.")
        else:
            try:
                ids = torch.tensor([list(prompt)])
            except (TypeError, ValueError, RuntimeError) as error:
                raise PromptError(f"a prompt must be text, token ids or chat messages, not {prompt!r:.60}.") from error
        if ids.ndim != 2 or (ids.numel() and (ids.is_floating_point() or ids.dtype == torch.bool)):
            raise PromptError(f"token ids must be whole numbers [T] or [1, T], not {ids.dtype} {list(ids.shape)}.")
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
            raise PromptError(f"token ids must be from 0 to {vocabulary - 1}, the model's vocabulary.")
        return ids.to(self._engine.model.device, torch.long)

    def _check_length(self, ids: torch.Tensor, padding: Any = None) -> None:
        length = self._positions_taken(ids, padding)
        if ids.shape[1] == 0:
            raise PromptError("the prompt is empty.")
        positions = self._engine.capabilities.positions
        if positions is not None and length >= positions:
            raise PromptError(f"the prompt has {length} tokens, the model {positions} positions. Shorten it.")

    def _positions_taken(self, ids: torch.Tensor, padding: Any) -> int:
        """Return how many positions a prompt takes; padding counts if the model counts cache rows."""
        return int(ids.shape[1]) if padding is None or self.by_slot else int(padding[0].sum())

    def _padding_read(self, call: GenerateCall) -> int:
        """Return the number of padding tokens in front of a prompt that only shift positions; hidden from drafters."""
        if call.padding is None or not self.by_slot:
            return 0
        return int(call.padding[0, call.start :].bool().int().argmax())


def _read_by_drafters(call: GenerateCall, ids: torch.Tensor, unread: Sequence[int]) -> Int32:
    """Return the text that drafts continue, Int32[T]: an encoder's input precedes the decoder's tokens.

    Tokens `unread` are placeholders of media, hidden from drafters; memories would learn their repetition.
    """
    source = None if call.source is None else call.source.get("input_ids")
    read = ids if source is None else torch.cat([source[0], ids])
    text = read.to(torch.int32).cpu().numpy().astype(np.int32)
    kept = text[~np.isin(text, unread)] if len(unread) else text
    return kept if len(kept) else text


def _is_chat(prompt: Any) -> TypeGuard[Sequence[Message]]:
    return isinstance(prompt, Sequence) and bool(prompt) and all(isinstance(each, dict) for each in prompt)


def _generator(device: torch.device, seed: int) -> torch.Generator:
    try:
        return torch.Generator(device).manual_seed(seed)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"a seed must be a whole number of at most 64 bits, not {seed!r}.") from error


def _drafting_seed(seed: int | None) -> np.random.SeedSequence:
    """Return the seed of a request's drafter.

    It is derived, so that drafts never share a random stream with acceptance. If the request uses torch's default
    stream, the seed follows from that stream's state, which differs between requests.
    """
    if seed is None:
        state = torch.get_rng_state().numpy().tobytes()
        return np.random.SeedSequence(int.from_bytes(hashlib.blake2b(state, digest_size=16).digest(), "little"))
    return np.random.SeedSequence(seed % (1 << 64), spawn_key=(DRAFTING_STREAM,))
