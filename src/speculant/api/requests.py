"""From a prompt and its options to a request that is ready to be decoded.

transformers' own `generate` does the preparation (configs, processors, criteria, cache) and is stopped where its
decoding loop would start; what it prepared is checked for what ours can honour.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig

from speculant.api.result import Run
from speculant.core.drafter import Drafter
from speculant.core.errors import PromptError, TokenizerError, UsageError
from speculant.core.stats import Stats
from speculant.engines.hf.capabilities import Abilities
from speculant.engines.hf.cpu.accelerate import Acceleration
from speculant.engines.hf.generate_capture import Call, prepare, sampling_options
from speculant.engines.hf.sampler import Request
from speculant.engines.hf.target import TransformersTarget

MAX_NEW_TOKENS = 256
_ELSEWHERE = "results have no field for it; ask `model.generate(..., custom_generate=speculator)`"
NOT_HERE = {
    "past_key_values": "give the cache of an earlier turn as `cache`",
    **dict.fromkeys(("return_dict_in_generate", "output_scores", "output_logits"), _ELSEWHERE),
}

Message = dict[str, str]
Prompt = str | Sequence[int] | Sequence[Message] | torch.Tensor


class Requests:
    """Prepares requests to one model."""

    def __init__(self, model: Any, tokenizer: Any, abilities: Abilities, fast: Acceleration, *, method: str) -> None:
        """Take the parts that all requests share.

        Args:
            model: a causal LM that `check_model` accepted; abilities: what it said.
            tokenizer: the model's, or None.
            fast: the model's preparation.
            method: the drafting method's name, for the records.
        """
        self._model, self._tokenizer, self._abilities, self._fast = model, tokenizer, abilities, fast
        self._method = method

    def prepare(
        self,
        drafter: Drafter,
        prompt: Prompt,
        *,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        streamer: Any = None,
        cache: Any = None,
        **options: Any,
    ) -> Run:
        """Return a request, not begun yet.

        Args:
            drafter: drafts for it.
            prompt: text, token ids, an id tensor [T] or [1, T], or chat messages ({"role", "content"}).
            max_new_tokens: end of the text at the latest; less where the model has no more positions. None for what a
                `generation_config` or `max_length` among the options says, else 256.
            temperature: 0 for greedy, above 0 to sample; None for what the model's generation config says.
            top_p, top_k: as in transformers; they need sampling.
            seed: of a random stream of its own; None uses torch's default stream. Either way the text is the
                one that plain decoding gives with that stream.
            stop: strings that end the text; the one that did is part of it, as in transformers.
            streamer: a transformers streamer.
            cache: `Result.cache` of an earlier turn that this prompt continues.
            options: anything else `model.generate` takes for one sequence: `generation_config`,
                `logits_processor`, `stopping_criteria`, `repetition_penalty`, `attention_mask`, ...

        Raises:
            PromptError: the prompt is empty or longer than the model's positions.
            UnsupportedError, UsageError: an option cannot be honoured.
        """
        for name, way_out in NOT_HERE.items():
            if options.get(name, False) not in (None, False):
                raise UsageError(f"`{name}` is not understood here: {way_out}.")
        ids = self._encode(prompt)
        self._check_length(ids)
        most, notes, positions = _most(ids.shape[1], max_new_tokens, options), [], self._abilities.positions
        if most < 1:
            raise UsageError(f"new tokens must be 1 or more, not {most}: see max_new_tokens and max_length.")
        if positions is not None and ids.shape[1] + most > positions:
            most = positions - ids.shape[1]
            notes.append(f"only {most} new tokens: the model has {positions} positions.")
        options.setdefault("attention_mask", torch.ones_like(ids))
        options |= sampling_options(temperature, top_p, top_k, **options)
        call = Call()
        try:
            self._model.generate(ids, custom_generate=call, past_key_values=cache, max_new_tokens=most, **options)
        except ValueError as error:
            raise UsageError(str(error)) from error
        run = self.run(drafter, call, streamer=streamer, stop=stop, seed=seed, tokenizer=self._tokenizer)
        run.stats.notes += notes
        if streamer is not None:
            streamer.put(ids.cpu())
        return run

    def run(self, drafter: Drafter, call: Call, *, streamer: Any, stop: Any, seed: int | None, tokenizer: Any) -> Run:
        """Return the request that `generate` prepared.

        Raises:
            UsageError: it is for another model.
            PromptError, UnsupportedError: it cannot be decoded.
        """
        if call.model is not self._model:
            raise UsageError("this speculator was made for another model; make one with Speculator.from_transformers.")
        ids = call.ids[:, call.start :]
        self._check_length(ids)
        prepared = prepare(call, stop=stop, tokenizer=tokenizer)
        stats = Stats(method=self._method, notes=[*self._abilities.notes, *self._fast.notes])
        target = TransformersTarget(
            self._model,
            self._abilities,
            ids,
            cache=call.cache,
            padding=None if call.padding is None else call.padding[:, call.start :],
            positions=None if call.positions is None else call.positions[:, call.start :],
            chunk=call.config.prefill_chunk_size,
            fast=self._fast,
        )
        if target.cached >= ids.shape[1]:
            raise PromptError("the cache already holds the whole prompt; add the new tokens to it.")
        stats.prompt_tokens = ids.shape[1] - target.cached
        generator = None if seed is None else _stream(self._model.device, seed)
        request = Request(
            ids=call.ids,
            processors=prepared.processors,
            criteria=prepared.criteria,
            sample=prepared.sample,
            generator=generator,
            emitted=(lambda token: streamer.put(torch.tensor([token]))) if streamer is not None else (lambda _: None),
            keep_scores=prepared.keep_scores,
            keep_raw=prepared.keep_raw,
        )
        return Run(target, request, drafter, seed=seed or 0, streamer=streamer, stats=stats)

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

    def _encode(self, prompt: Prompt) -> torch.Tensor:
        if isinstance(prompt, torch.Tensor):
            ids = prompt if prompt.ndim == 2 else prompt[None]
        elif isinstance(prompt, str):
            if self._tokenizer is None:
                raise TokenizerError("this model has no tokenizer; pass the prompt as token ids.")
            if not prompt:
                raise PromptError("the prompt is empty.")
            ids = torch.tensor([self._tokenizer(prompt)["input_ids"]])
        elif isinstance(prompt, Sequence) and prompt and all(isinstance(each, dict) for each in prompt):
            ids = torch.tensor([self.encode_chat(prompt)])  # type: ignore[arg-type]
        else:
            try:
                ids = torch.tensor([list(prompt)])
            except (TypeError, ValueError, RuntimeError) as error:
                raise PromptError(f"a prompt is text, token ids or chat messages, not {prompt!r:.60}.") from error
        if ids.ndim != 2 or (ids.numel() and ids.is_floating_point()):
            raise PromptError(f"token ids must be whole numbers [T] or [1, T], not {ids.dtype} {list(ids.shape)}.")
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < self._abilities.vocabulary:
            raise PromptError(f"token ids must be below {self._abilities.vocabulary}, the model's vocabulary.")
        return ids.to(self._model.device, torch.long)

    def _check_length(self, ids: torch.Tensor) -> None:
        if ids.shape[1] == 0:
            raise PromptError("the prompt is empty.")
        positions = self._abilities.positions
        if positions is not None and ids.shape[1] >= positions:
            raise PromptError(f"the prompt has {ids.shape[1]} tokens, the model {positions} positions. Shorten it.")


def _most(prompt: int, max_new_tokens: int | None, options: dict[str, Any]) -> int:
    """Return how many tokens may follow a prompt of so many; `max_length` leaves the options."""
    config, length = options.get("generation_config"), options.pop("max_length", None)
    found = max_new_tokens
    if found is None and length is not None:
        found = length - prompt
    if found is None and config is not None:
        found = config.max_new_tokens
        if found is None and config.max_length not in (None, GenerationConfig().max_length):
            found = config.max_length - prompt
    if found is None:
        return MAX_NEW_TOKENS
    if not isinstance(found, int):
        raise UsageError(f"max_new_tokens must be a whole number, not {found!r}.")
    return found


def _stream(device: torch.device, seed: int) -> torch.Generator:
    try:
        return torch.Generator(device).manual_seed(seed)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"a seed is a whole number of at most 64 bits, not {seed!r}.") from error
