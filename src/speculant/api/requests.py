"""Prepares a request for decoding from a prompt and its options, which the engine reads."""

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
from speculant.api.request_checks import check_options, limit_new_tokens
from speculant.api.result import Generation
from speculant.core.drafter import SessionRequest
from speculant.core.errors import PromptError, TokenizerError, UnsupportedError, UsageError
from speculant.core.model_engine import ModelEngine
from speculant.core.prepared_request import PreparedRequest
from speculant.core.stats import Stats
from speculant.core.tree import Int32
from speculant.decoding.sequence import Sequence as DecodedSequence
from speculant.engines.hf.sampling.logprobs import TopLogprobs
from speculant.engines.hf.sampling.output_processors import LogitBias, OutputPenalties
from speculant.engines.hf.sampling.sampler import make_sampler, plan_sampling
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
        self._unread = [] if heads else list(engine.placeholders)

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
        sampling = {"temperature": temperature, "top_p": asked.top_p, "top_k": asked.top_k}
        options |= {name: value for name, value in sampling.items() if value is not None}
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
        presence, frequency = asked.presence_penalty or 0, asked.frequency_penalty or 0
        if presence or frequency:
            lowered = OutputPenalties(ids.shape[1], presence=presence, frequency=frequency)
            options["logits_processor"] = [lowered, *options.get("logits_processor", [])]
        constrained = asked.constraint is not None
        prepared = self._engine.prepare(
            ids, max_new_tokens=maximum, cache=asked.cache, options=options, constrained=constrained
        )
        if prepared.stop and self._tokenizer is None:
            raise TokenizerError("the generation config has stop strings, which need a tokenizer; leave them out.")
        whole = replace(asked, stop=[*strings, *prepared.stop], logit_bias=bias)
        generation = self.begin(prepared, whole, tokenizer=self._tokenizer)
        generation.sequence.stats.notes += [*notes, *prepared.notes]
        if asked.streamer is not None:
            asked.streamer.put(prepared.ids.cpu())
        return generation

    def begin(self, prepared: PreparedRequest, asked: RequestOptions, *, tokenizer: Any) -> Generation:
        """Return a prepared request for one text; its decoding has not started.

        Args:
            prepared: the request.
            asked: its options, of which the engine has read those of `generate`.
            tokenizer: tokenizer for stop strings and text; or None.

        Raises:
            UsageError: it belongs to another model.
            PromptError, UnsupportedError: it cannot be decoded.
        """
        # 1. Whether drafts can be verified on it, and how its tokens are chosen.
        engine = self._engine
        foreign = prepared.model is not None and prepared.model is not engine.model
        if foreign and not engine.contains(prepared.model):
            raise UsageError("this speculator was made for another model; make one with Speculator.from_transformers.")
        undrafted = foreign or not self.drafts(prepared)
        ids = prepared.ids[:, prepared.start :]
        padding = None if prepared.padding is None else prepared.padding[:, prepared.start :]
        self._check_length(ids, padding)
        grammar, first = self._constrain(prepared, asked)
        plan = plan_sampling(
            prepared,
            first=first,
            stop=check_stop(asked.stop),
            tokenizer=tokenizer,
            generator=None if asked.seed is None else _generator(engine.device, asked.seed),
        )

        # 2. Its cache, and what its drafts start from.
        cache = engine.open_prepared(prepared, plain=undrafted)
        if not cache.unread:
            raise PromptError("the cache already holds the whole prompt; add the new tokens to it.")
        sampler, ranked = make_sampler(prepared.ids, plan), asked.prompt_logprobs is not None
        read = ids[0, self._padding_read(padding) :]
        start = SessionRequest(
            prompt=_read_by_drafters(prepared.source_ids, read, () if ranked else self._unread),
            sampling=prepared.sampling,
            seed=_drafting_seed(asked.seed),
            target=cache,
            constraint=grammar,
            tenant=asked.tenant,
            prediction=np.array([] if asked.prediction is None else asked.prediction, np.int32),
            source=None if undrafted else engine.find_source(prepared),
        )

        # 3. The sequence, and what users see of it.
        notes = list(engine.notes)
        if undrafted and engine.capabilities.drafts:
            reason = "this class lets a model within it write the text" if foreign else engine.obstacle(prepared)
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
        chunk = prepared.chunk
        return Generation(
            sequence,
            sampler,
            target=cache,
            tokenizer=tokenizer,
            streamer=asked.streamer,
            special=SpecialTokens(skip=asked.skip_special_tokens, spaced=asked.spaces_between_special_tokens),
            chunk=min(chunk or WATCHED_CHUNK, WATCHED_CHUNK) if ranked else chunk,
        )

    def _constrain(self, prepared: PreparedRequest, asked: RequestOptions) -> tuple[Any, list[Any]]:
        """Return the state of the constraint, or None, and what precedes transformers' processors.

        That is the constraint's mask and the bias, in this order, as in vLLM.
        """
        grammar, first = None, list[Any]()
        if asked.constraint is not None:
            grammar = self._compiler.open(asked.constraint, prompt=prepared.ids.shape[1], ends=prepared.ends)
            first.append(grammar)
        if asked.logit_bias:
            first.append(LogitBias(asked.logit_bias, prepared.ids.device))
        return grammar, first

    @property
    def by_slot(self) -> bool:
        """Whether the model counts positions by cache slot, including padding."""
        return self._engine.capabilities.by_slot

    @property
    def reads_padding(self) -> bool:
        """Whether padding in front of a row affects its text."""
        return self._engine.reads_padding

    def drafts(self, prepared: PreparedRequest) -> bool:
        """Return whether drafts can be verified on a request."""
        return self._engine.capabilities.drafts and not self._engine.obstacle(prepared)

    def compile_constraint(self, constraint: Constraint, ends: Sequence[int] | None) -> CompiledConstraint:
        """Compile a constraint for texts ended by these tokens; None for those in the model's generation config."""
        if ends is None:
            own = self._engine.defaults.get("eos_token_id")
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
        device = self._engine.device
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
        return ids.to(self._engine.device, torch.long)

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

    def _padding_read(self, padding: torch.Tensor | None) -> int:
        """Return the number of padding tokens in front of a prompt that only shift positions; hidden from drafters."""
        return 0 if padding is None or not self.by_slot else int(padding[0].bool().int().argmax())


def _read_by_drafters(source: torch.Tensor | None, ids: torch.Tensor, unread: Sequence[int]) -> Int32:
    """Return the text that drafts continue, Int32[T]: an encoder's input precedes the decoder's tokens.

    Tokens `unread` are placeholders of media, hidden from drafters; memories would learn their repetition.
    """
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
