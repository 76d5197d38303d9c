"""Decoder: a model, a drafter and a tokenizer, ready to decode.

`generate` and `stream` let the engine read the options of a request and run the rounds of `speculant.decoding`; for a
model of transformers, its own `generate` does that preparation. `custom_generate=speculator` starts from transformers.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.api.options import AUTO, check_nodes
from speculant.core.drafter import Background, Drafter, Loadable, Persistent
from speculant.core.errors import UnsupportedError, UsageError
from speculant.options.drafting import DraftingOptions
from speculant.options.request import RequestKeywords, RequestOptions
from speculant.registry import METHODS, build_verifier, drafts_from_text, find_method

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from speculant.api.batch import Batch
    from speculant.api.constraints import CompiledConstraint, Constraint
    from speculant.api.custom_generate import Bound
    from speculant.api.prefix_cache import PrefixCache
    from speculant.api.requests import Message, Prompt
    from speculant.api.result import Generation, Result, Stream
    from speculant.core.prepared_request import PreparedRequest
    from speculant.core.stats import Stats
    from speculant.core.verifier import Verifier
    from speculant.decoding.step import DecodingComponents
    from speculant.drafters.mix.base import MixBase
    from speculant.engines.hf.cpu.accelerate import CpuAcceleration


class Decoder:
    """Decodes with drafts. The learned memory is shared by all its requests.

    Attributes:
        engine: runs the model.
        processor: the model's processor for images and other media; None if there is none.
        drafter: proposes tokens; owns the memory.
        verifier: the acceptance rule.
        method: the drafting method's name.
        nodes: maximum nodes per draft, or "auto".
        bases: the frozen bases under the drafter's memory.
        last_stats: statistics of the last prepared request.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        drafter: Drafter,
        *,
        method: str,
        options: DraftingOptions | None = None,
        verifier: Verifier | None = None,
        notes: Sequence[str] = (),
        bases: Sequence[MixBase] = (),
        processor: Any = None,
    ) -> None:
        """Assemble the parts; users normally call a constructor of `Speculator`.

        Args:
            model, tokenizer: see `Speculator.from_transformers`.
            drafter, verifier: built by `registry`.
            method: the drafting method's name.
            options: how drafts are sized and passes are run; None for the defaults.
            notes: messages for the user about the drafter, added to the notes of every request.
            bases: the bases that the drafter was built with.
            processor: the model's processor for images and other media; or None.

        Raises:
            UnsupportedError: the model cannot be decoded; or, with `strict`, drafts cannot be verified on it.
        """
        from speculant.api.engines import find_engine
        from speculant.api.requests import Preparation  # imported here, since this loads transformers
        from speculant.api.sizes import Sizes, max_rows
        from speculant.api.tuning import stored_step_cost

        self.tokenizer, self.processor, self.drafter, self.method = tokenizer, processor, drafter, method
        self.verifier = build_verifier(method) if verifier is None else verifier
        asked = DraftingOptions() if options is None else options
        self.engine = find_engine(model).open(model, fast=asked.fast, notes=notes, strict=asked.strict)
        chosen = check_nodes(asked.nodes)
        self.nodes = chosen if chosen is not None else 0 if method == "none" else AUTO
        self.bases = tuple(bases)
        known = stored_step_cost(self.engine, maximum=max_rows(drafter.needs, 1))
        learns = isinstance(drafter, Persistent)
        self._sizes = Sizes(replace(asked, nodes=self.nodes), drafter.needs, known=known, learns=learns)
        self.last_stats: Stats | None = None
        self._preparation = Preparation(self.engine, tokenizer, method=method, processor=processor)

    @property
    def model(self) -> Any:
        """The model, as an object of its engine's library."""
        return self.engine.whole

    @property
    def fast(self) -> CpuAcceleration:
        """The prepared model, which several speculators of one model may share."""
        from speculant.engines.hf.cpu.accelerate import CpuAcceleration

        own = self.engine.acceleration
        return own if isinstance(own, CpuAcceleration) else CpuAcceleration()

    def generate(self, prompt: Prompt, **options: Unpack[RequestKeywords]) -> Result:
        """Return the whole continuation of a prompt; the parameters are those of `stream`."""
        stream = self.stream(prompt, **options)
        for _ in stream:
            pass
        return stream.result

    def stream(self, prompt: Prompt, **options: Unpack[RequestKeywords]) -> Stream:
        """Return the continuation of a prompt piece by piece.

        Args:
            prompt: text, token ids, an id tensor [T] or [1, T], or chat messages ({"role", "content"}), whose content
                may have images and other media, see `speculant.api.media_prompts`; or a dict that a processor returned.
            options: `speculant.options.request.RequestOptions` describes them: `max_new_tokens`, `temperature`, `seed`,
                `stop`, `cache`, `constraint`, ..., and any field of transformers' GenerationConfig.

        Raises:
            PromptError: the prompt is empty or longer than the model's positions.
            UnsupportedError, UsageError: an option is not supported or invalid.
        """
        from speculant.api.result import Stream

        return Stream(self.prepare(prompt, **options), self.parts())

    def prepare(self, prompt: Prompt, **options: Unpack[RequestKeywords]) -> Generation:
        """Prepare a request for decoding by a batch; `options` as in `stream`."""
        self.probe()
        generation = self._preparation.request(prompt, RequestOptions.of(options))
        self.last_stats = generation.sequence.stats
        return generation

    def batch(
        self,
        size: int = 8,
        *,
        keep_caches: bool = False,
        prefix_cache: PrefixCache | int | float | str | None = None,
        prompt_chunk: int | None = None,
    ) -> Batch:
        """Return an empty batch, which decodes up to `size` requests with one target pass per round.

        Requests can be added at any time and leave when their texts end; each yields the same as if decoded alone. If
        `nodes` is a number, it is shared by all drafts of a pass. With `keep_caches`, results keep their caches for a
        next turn's `cache=`.

        With `prefix_cache` (bytes such as "1GB", or a `speculant.PrefixCache` that several batches may share), prompts
        that share a prefix with earlier texts start with copies of the cached rows. This is not used if a method reads
        the hidden states of the whole prompt, as trained heads do, or if the model's rows depend on the whole text.

        Between two rounds at most `prompt_chunk` prompt tokens are read, shortest remainder first; None for a value
        that suits the device.
        """
        from speculant.api.batch import Batch
        from speculant.api.prefix_cache import open_prefix_cache

        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(f"a batch must have room for 1 request or more, not {size!r}.")
        if size > (maximum := self.engine.capabilities.sequences):
            held = f"{self.engine.name} holds {maximum} sequences"
            raise UsageError(f"{held}, too few for a batch of {size}; raise `sequences`.")
        self.probe(size)
        size = min(size, self.engine.texts_at_once)
        prefixes = open_prefix_cache(prefix_cache)
        return Batch(
            self.prepare,
            self.parts(size),
            self.engine,
            size=size,
            keep_caches=keep_caches,
            prefixes=prefixes,
            prompt_chunk=prompt_chunk,
        )

    def generate_batch(
        self, prompts: Iterable[Prompt], *, size: int = 8, **options: Unpack[RequestKeywords]
    ) -> list[Result]:
        """Return the complete continuations of many prompts, decoding up to `size` of them together.

        Args:
            prompts: each as in `stream`.
            size: maximum requests per pass.
            options: options of every request, see `stream`. With a `seed`, request i samples with seed + i. Every
                request gets copies of `logits_processor` and `stopping_criteria`, so that they do not share state.

        Raises:
            BatchError: some requests failed; it has the results of all.
            PromptError, UnsupportedError, UsageError: a request cannot be decoded; nothing was decoded.
        """
        if isinstance(prompts, str):
            raise UsageError("the prompts are one text; put it into a list, or use `generate`.")
        for name in ("streamer", "cache", "attention_mask", "position_ids"):
            if options.get(name) is not None:
                raise UsageError(f"texts of a batch cannot share `{name}`; give each its own by `batch.add`.")
        batch = self.batch(size)
        seed, stateful = options.get("seed"), (options.get("logits_processor"), options.get("stopping_criteria"))
        generations = []
        for place, prompt in enumerate(prompts):
            processors, criteria = copy.deepcopy(stateful)
            own = options | {"logits_processor": processors, "stopping_criteria": criteria}
            generations.append(batch.add(prompt, **own | {"seed": None if seed is None else seed + place}))
        return batch.run(generations)

    def bind(
        self,
        *,
        streamer: Any = None,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        tokenizer: Any = None,
        source: Mapping[str, Any] | None = None,
    ) -> Bound:
        """Return a callable for `model.generate(custom_generate=...)` with further options.

        Args:
            streamer: receives the prompt, then every token, then end(); for one row. It may be given to `generate`
                instead.
            stop: strings that end the text.
            seed: seed of a separate random stream; with several rows, row i samples with seed + i.
            tokenizer: tokenizer for `stop`; None for the speculator's own.
            source: what the encoder of an encoder-decoder reads, by name; for prompt lookup, and for draft models with
                an encoder of their own. `generate` passes on only the states of the target's encoder.
        """
        from speculant.api.custom_generate import Bound

        return Bound(
            begin=self._begin,
            drafts=self._drafts,
            reads_padding=lambda: self._preparation.reads_padding,
            parts=self.parts,
            batch=self.batch,
            streamer=streamer,
            stop=stop,
            seed=seed,
            tokenizer=tokenizer or self.tokenizer,
            source=source,
        )

    def __call__(
        self,
        model: Any,
        input_ids: Any,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Any:
        """Replace transformers' decoding loop: `model.generate(..., custom_generate=speculator)`; see `Bound`."""
        return self.bind()(model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs)

    def save(self, path: str | Path) -> None:
        """Write the drafter's memory.

        Raises:
            UnsupportedError: the method saves no memory, even if it can start from one.
            FileError: it cannot be written; an existing file is unchanged.
        """
        if isinstance(self.drafter, Persistent):
            self.drafter.save(_path(path))
        else:
            which = "can start from a memory but saves none" if isinstance(self.drafter, Loadable) else "has no memory"
            raise UnsupportedError(f"the method '{self.method}' {which}; to save what is learned, use 'mix'.")

    def load(self, path: str | Path) -> None:
        """Replace the drafter's memory by that in a file, or start from a corpus file.

        Raises:
            UnsupportedError: the method can do neither.
            FileError, MemoryFileError: the file cannot be used.
        """
        if not isinstance(self.drafter, Loadable):
            raise UnsupportedError(f"the method '{self.method}' has no memory to load; use 'mix'.")
        self.drafter.load(_path(path))

    def probe(self, texts: int = 1) -> None:
        """Check the model's current state, as every request does; a batch checks it for the texts that share a pass.

        Args:
            texts: number of texts decoded together. Calling this with the largest number first saves a check.

        Raises:
            UnsupportedError: drafting is required (`strict`) but not possible.
        """
        nodes = self.nodes if isinstance(self.nodes, int) else self.drafter.needs.max_nodes
        self.engine.probe(rows=nodes + texts * (1 + self.drafter.needs.queries))

    def draft_with(self, drafter: Drafter) -> None:
        """Replace the drafter that makes the drafts, for instance by one that wraps it.

        Args:
            drafter: a drafter with the same needs. Requests prepared before keep their sessions.

        Raises:
            UsageError: it has other needs than those for which draft sizes and caches were set up.
        """
        if drafter.needs != self.drafter.needs:
            raise UsageError("the drafter needs other outputs of the target's passes; make a new Speculator with it.")
        self.drafter = drafter

    def close(self) -> None:
        """Stop background work, such as online distillation and sharing; generation remains possible."""
        if isinstance(self.drafter, Background):
            self.drafter.close()

    def parts(self, size: int = 1) -> DecodingComponents:
        """Return the components that decode a stream (size 1) or a batch."""
        from speculant.decoding.step import DecodingComponents
        from speculant.drafters.forced import ForcedDrafter

        forcing = self.method in METHODS and drafts_from_text(find_method(self.method))
        drafter = ForcedDrafter(self.drafter) if forcing else self.drafter
        # Draft models may run in threads of their own, for which waiting is work. Windows counts the CPU time of
        # threads in ticks of 16 ms.
        in_thread = forcing and self.engine.works_in_thread and sys.platform != "win32"
        return DecodingComponents(
            engine=self.engine,
            drafter=drafter,
            verifier=self.verifier,
            sizing=self._sizes.of(size),
            work_clock=time.thread_time if in_thread else time.perf_counter,
        )

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Return the token ids of chat messages in the model's template, ready for the next answer.

        Raises:
            TokenizerError: there is no tokenizer, or it has no chat template.
        """
        return self._preparation.encode_chat(messages)

    def compile_constraint(
        self, constraint: Constraint, *, eos_token_id: Sequence[int] | None = None
    ) -> CompiledConstraint:
        """Compile a constraint so that requests with it start without delay, for servers; thread-safe.

        Args:
            constraint: the constraint on texts.
            eos_token_id: ids of the tokens that end them; None for those in the model's generation config.

        Raises:
            UsageError: the constraint is invalid or too complex, or nothing ends the texts.
            TokenizerError: there is no tokenizer.
            UnsupportedError: llguidance is not installed, or does not support this kind of tokenizer.
        """
        return self._preparation.compile_constraint(constraint, eos_token_id)

    def _drafts(self, prepared: PreparedRequest) -> bool:
        """Return whether drafts can be verified on a request."""
        self.probe()
        return self._preparation.drafts(prepared)

    def _begin(self, prepared: PreparedRequest, asked: RequestOptions, *, tokenizer: Any) -> Generation:
        self.probe()
        generation = self._preparation.begin(prepared, asked, tokenizer=tokenizer)
        self.last_stats = generation.sequence.stats
        return generation


def _path(path: Any) -> Path:
    if not isinstance(path, str | Path) or not str(path):
        raise UsageError(f"a memory file must be named by a path, not {path!r}.")
    return Path(path)
