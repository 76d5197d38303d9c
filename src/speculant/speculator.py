"""The front door: a model, a drafter and a tokenizer, ready to decode.

`generate` and `stream` let transformers' own `generate` do all preparation (configs, processors, criteria,
cache), take over where its decoding loop would start, and run ours. `custom_generate=speculator` does the
same from the other side.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from speculant.drafters.base import MEMORY_LIMIT, Drafter
from speculant.errors import PromptError, TokenizerError, UnsupportedError, UsageError
from speculant.fingerprint import tokenizer_fingerprint
from speculant.generation import Result, Run, Stream
from speculant.loading import load_model
from speculant.registry import find_method
from speculant.sizing import BestSize, FixedSize, RoundCost, Sizing, Values
from speculant.stats import Stats
from speculant.targets.fast import prepare_model
from speculant.targets.preparation import Call, prepare, sampling_options
from speculant.targets.sampling import Request
from speculant.targets.support import check_model
from speculant.targets.transformers import TransformersTarget
from speculant.tuning import stored_step_cost

Message = dict[str, str]
Prompt = str | Sequence[int] | Sequence[Message] | torch.Tensor

NODES = {"cpu": 8}
NODES_ELSEWHERE = 64
AUTO = "auto"
MOST_NODES = 64  # of a draft whose size is chosen round by round


class Speculator:
    """Decodes with drafts. The memory it learns is shared by all its requests."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        drafter: Drafter,
        *,
        method: str,
        nodes: int | str | None = None,
        fast: bool | None = None,
    ) -> None:
        """Put the parts together; `from_transformers` and `from_pretrained` are the usual ways in.

        Raises:
            UnsupportedError: drafts cannot be verified on this model.
        """
        self.model = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.tokenizer = tokenizer
        self.drafter = drafter
        self.method = method
        self.abilities = check_model(self.model)
        if not (nodes is None or nodes == AUTO or (isinstance(nodes, int) and nodes >= 0)):
            raise UsageError(f"nodes must be 0 or more, or '{AUTO}', not {nodes!r}.")
        self.nodes = NODES.get(self.model.device.type, NODES_ELSEWHERE) if nodes is None else nodes
        self.fast = prepare_model(self.model, fast)
        known = stored_step_cost(self.model, self.fast, most=MOST_NODES)
        self._cost, self._values = RoundCost(most=MOST_NODES, known=known), Values()
        self.last_stats: Stats | None = None

    @classmethod
    def from_transformers(
        cls,
        model: Any,
        tokenizer: Any = None,
        *,
        method: str = "mix",
        nodes: int | str | None = None,
        memory: str | Path | None = None,
        memory_limit: int = MEMORY_LIMIT,
        fast: bool | None = None,
        **options: Any,
    ) -> Speculator:
        """Wrap a loaded model.

        Args:
            model: a transformers causal LM, or a PEFT model around one.
            tokenizer: its tokenizer; without one prompts must be ids, and results have no text.
            method: a name from `speculant methods`.
            nodes: most nodes per draft; None for 8 on a CPU, 64 elsewhere; "auto" for as many as pay in each round,
                up to 64, by what passes turn out to cost and nodes to be worth.
            memory: a memory file to begin with, if it exists.
            memory_limit: bytes the drafter's memory may take.
            fast: whether passes over a draft run the library's own code for linear layers, on CPUs; None: where that
                pays. Where it cannot be, `stats.notes` says why.
            options: further options of the method's drafter, such as `settings=`.

        Raises:
            UnknownMethodError, UnsupportedError: the method or the model cannot be used.
            MemoryFileError: the memory file cannot be used.
        """
        found = find_method(method)
        if memory is not None and not found.memory:
            raise UnsupportedError(f"the method '{method}' keeps no memory; leave out `memory`, or use 'mix'.")
        if method != "none":
            vocabulary = model.config.get_text_config(decoder=True).vocab_size
            options["vocabulary"] = vocabulary
            options["tokenizer"] = tokenizer_fingerprint(tokenizer, vocabulary)
            options["memory_limit"] = memory_limit
        speculator = cls(model, tokenizer, found.build(**options), method=method, nodes=nodes, fast=fast)
        if memory is not None and Path(memory).exists():
            speculator.drafter.load(Path(memory))
        return speculator

    @classmethod
    def from_pretrained(
        cls,
        name: str | None = None,
        *,
        dtype: str | None = None,
        device: str | None = None,
        attention: str | None = None,
        **options: Any,
    ) -> Speculator:
        """Load a model from a folder or the hub (None: the bundled story model) and wrap it.

        Args:
            name, dtype, device, attention: see `speculant.loading.load_model`.
            options: see `from_transformers`.
        """
        model, tokenizer = load_model(name, dtype=dtype, device=device, attention=attention)
        return cls.from_transformers(model, tokenizer, **options)

    def generate(self, prompt: Prompt, **options: Any) -> Result:
        """Return the whole continuation of a prompt.

        Args:
            prompt: text, token ids, an id tensor [T] or [1, T], or chat messages ({"role", "content"}).
            options: see `stream`.
        """
        stream = self.stream(prompt, **options)
        for _ in stream:
            pass
        return stream.result

    def stream(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = 256,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        streamer: Any = None,
        cache: Any = None,
        **options: Any,
    ) -> Stream:
        """Return the continuation of a prompt piece by piece.

        Args:
            prompt: text, token ids, an id tensor [T] or [1, T], or chat messages ({"role", "content"}).
            max_new_tokens: end of the text at the latest; less where the model has no more positions.
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
        ids = self._encode(prompt)
        notes, positions = [], self.abilities.positions
        if positions is not None and ids.shape[1] + max_new_tokens > positions > ids.shape[1]:
            max_new_tokens = positions - ids.shape[1]
            notes.append(f"only {max_new_tokens} new tokens: the model has {positions} positions.")
        if max_new_tokens < 1:
            raise UsageError(f"max_new_tokens must be 1 or more, not {max_new_tokens}.")
        self._check_length(ids)
        options.setdefault("attention_mask", torch.ones_like(ids))
        options |= sampling_options(temperature, top_p, top_k)
        call = Call()
        try:
            self.model.generate(
                ids, custom_generate=call, past_key_values=cache, max_new_tokens=max_new_tokens, **options
            )
        except ValueError as error:
            raise UsageError(str(error)) from error
        if streamer is not None:
            streamer.put(ids.cpu())
        run = self._run(call, streamer=streamer, stop=stop, seed=seed, tokenizer=self.tokenizer)
        run.stats.notes += notes
        return Stream(run, self.tokenizer)

    def bind(
        self,
        *,
        streamer: Any = None,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        tokenizer: Any = None,
    ) -> Bound:
        """Return a callable for `model.generate(custom_generate=...)` with what `generate` drops for callables.

        Args:
            streamer: gets the prompt, then every token, then end(). Do not pass it to `generate` as well.
            stop: strings that end the text.
            seed: of a random stream of its own.
            tokenizer: for `stop`; the speculator's own if None.
        """
        return Bound(self, streamer, stop, seed, tokenizer or self.tokenizer)

    def __call__(
        self,
        model: Any,
        input_ids: Any,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Any:
        """Stand in for transformers' decoding loop: `model.generate(..., custom_generate=speculator)`."""
        return self.bind()(model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs)

    def save(self, path: str | Path) -> None:
        """Write the drafter's memory.

        Raises:
            FileError: it cannot be written; an older file is unchanged.
        """
        self.drafter.save(Path(path))

    def load(self, path: str | Path) -> None:
        """Replace the drafter's memory by a file's."""
        self.drafter.load(Path(path))

    def sizing(self) -> Sizing:
        """Return what says how many nodes the rounds of one request spend."""
        return FixedSize(self.nodes) if isinstance(self.nodes, int) else BestSize(self._cost, self._values)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Return the token ids of chat messages in the model's template, ready for the next answer.

        Raises:
            TokenizerError: there is no tokenizer, or it has no chat template.
        """
        if self.tokenizer is None or not getattr(self.tokenizer, "chat_template", None):
            raise TokenizerError("this model's tokenizer has no chat template; pass the prompt as text.")
        text = self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        begun = self.tokenizer.bos_token is not None and text.startswith(self.tokenizer.bos_token)
        ids: list[int] = self.tokenizer(text, add_special_tokens=not begun)["input_ids"]
        return ids

    def _encode(self, prompt: Prompt) -> torch.Tensor:
        if isinstance(prompt, torch.Tensor):
            ids = prompt if prompt.ndim == 2 else prompt[None]
        elif isinstance(prompt, str):
            if self.tokenizer is None:
                raise TokenizerError("this model has no tokenizer; pass the prompt as token ids.")
            if not prompt:
                raise PromptError("the prompt is empty.")
            ids = torch.tensor([self.tokenizer(prompt)["input_ids"]])
        elif len(prompt) and isinstance(prompt[0], dict):
            ids = torch.tensor([self.encode_chat(prompt)])  # type: ignore[arg-type]
        else:
            ids = torch.tensor([list(prompt)])
        return ids.to(self.model.device, torch.long)

    def _check_length(self, ids: torch.Tensor) -> None:
        if ids.shape[1] == 0:
            raise PromptError("the prompt is empty.")
        positions = self.abilities.positions
        if positions is not None and ids.shape[1] >= positions:
            raise PromptError(f"the prompt has {ids.shape[1]} tokens, the model {positions} positions. Shorten it.")

    def _run(self, call: Call, *, streamer: Any, stop: Any, seed: int | None, tokenizer: Any) -> Run:
        if call.model is not self.model:
            raise UsageError("this speculator was made for another model; make one with Speculator.from_transformers.")
        self._check_length(call.ids)
        prepared = prepare(call, stop=stop, tokenizer=tokenizer)
        stats = Stats(method=self.method, notes=[*self.abilities.notes, *self.fast.notes])
        target = TransformersTarget(
            self.model,
            self.abilities,
            call.ids,
            cache=call.cache,
            padding=call.padding,
            positions=call.positions,
            chunk=call.config.prefill_chunk_size,
            fast=self.fast,
        )
        if target.cached >= call.ids.shape[1]:
            raise PromptError("the cache already holds the whole prompt; add the new tokens to it.")
        stats.prompt_tokens = call.ids.shape[1] - target.cached
        generator = None if seed is None else torch.Generator(self.model.device).manual_seed(seed)
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
        self.last_stats = stats
        return Run(target, request, self.drafter, sizing=self.sizing(), seed=seed or 0, streamer=streamer, stats=stats)


class Bound:
    """A speculator as a decoding method for `model.generate(custom_generate=...)`."""

    def __init__(self, owner: Speculator, streamer: Any, stop: Any, seed: int | None, tokenizer: Any) -> None:
        self._owner, self._streamer, self._stop, self._seed, self._tokenizer = owner, streamer, stop, seed, tokenizer

    def __call__(
        self,
        model: Any,
        input_ids: Any,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Any:
        """Decode and return what `generate` returns: ids Int64[1, T], or an output object if it was asked for."""
        call = Call()
        call(model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs)
        if self._streamer is not None:
            self._streamer.put(input_ids.cpu())
        run = self._owner._run(
            call, streamer=self._streamer, stop=self._stop, seed=self._seed, tokenizer=self._tokenizer
        )
        for _ in run.rounds():
            pass
        request = run.request
        if not generation_config.return_dict_in_generate:
            return request.true_ids()
        from transformers.generation import GenerateDecoderOnlyOutput

        return GenerateDecoderOnlyOutput(
            sequences=request.true_ids(),
            scores=tuple(request.scores) if request.keep_scores else None,
            logits=tuple(request.raw) if request.keep_raw else None,
            past_key_values=run.target.cache,
        )
