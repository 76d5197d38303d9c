"""The front door: a model, a drafter and a tokenizer, ready to decode.

`generate` and `stream` let transformers' own `generate` do all preparation (configs, processors, criteria,
cache), take over where its decoding loop would start, and run ours. `custom_generate=speculator` does the
same from the other side.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from speculant.api.batch import Batch, finish
from speculant.api.custom_generate import Bound
from speculant.api.loading import load_model
from speculant.api.requests import Message, Prompt, Requests
from speculant.api.result import Result, Run, Stream
from speculant.core.drafter import MEMORY_LIMIT, Drafter
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.stats import Stats
from speculant.engines.hf.batch_pass import RaggedPass
from speculant.engines.hf.capabilities import check_model
from speculant.engines.hf.cpu.accelerate import Acceleration, prepare_model
from speculant.engines.hf.generate_capture import Call
from speculant.memory.fingerprint import tokenizer_fingerprint
from speculant.registry import find_method
from speculant.sizing.acceptance import Values
from speculant.sizing.batch import BatchSizing, BestBudget, FixedBudget
from speculant.sizing.exploration import Lessons
from speculant.sizing.latency import RoundCost
from speculant.sizing.policy import BestSize, FixedSize, Sizing, warm_up
from speculant.sizing.tuning import stored_step_cost

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
        fast: bool | Acceleration | None = None,
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
        self.nodes = nodes if nodes is not None else 0 if method == "none" else AUTO
        self.fast = prepare_model(self.model, fast)
        known = stored_step_cost(self.model, self.fast, most=MOST_NODES)
        self._cost, self._values = RoundCost(most=MOST_NODES, known=known), Values()
        self._lessons = Lessons() if drafter.needs.top_k else None
        if self.nodes == AUTO:
            warm_up()
        self.last_stats: Stats | None = None
        self._requests = Requests(self.model, tokenizer, self.abilities, self.fast, method=method)

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
        fast: bool | Acceleration | None = None,
        **options: Any,
    ) -> Speculator:
        """Wrap a loaded model.

        Args:
            model: a transformers causal LM, or a PEFT model around one.
            tokenizer: its tokenizer; without one prompts must be ids, and results have no text.
            method: a name from `speculant methods`.
            nodes: most nodes per draft; "auto", the default, for as many as pay in each round, up to 64, by what passes
                turn out to cost and nodes to be worth.
            memory: a memory file to begin with, if it exists.
            memory_limit: bytes the drafter's memory may take.
            fast: whether passes run the library's own code, on CPUs, or recorded graphs, on CUDA; None: on CPUs, where
                that pays. Where it cannot be, `stats.notes` says why. Speculators of one model may share what was
                prepared: `fast=other.fast`.
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
            name, dtype, device, attention: see `speculant.api.loading.load_model`.
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

    def stream(self, prompt: Prompt, **options: Any) -> Stream:
        """Return the continuation of a prompt piece by piece.

        Args:
            prompt: text, token ids, an id tensor [T] or [1, T], or chat messages ({"role", "content"}).
            options: `max_new_tokens`, `temperature`, `seed`, `stop` and all others of `Requests.prepare`.

        Raises:
            PromptError: the prompt is empty or longer than the model's positions.
            UnsupportedError, UsageError: an option cannot be honoured.
        """
        return Stream(self.prepare(prompt, **options), self.tokenizer, self.sizing())

    def prepare(self, prompt: Prompt, **options: Any) -> Run:
        """Return a request that is ready to be decoded by a stream or a batch; as in `stream`."""
        run = self._requests.prepare(self.drafter, prompt, **options)
        self.last_stats = run.stats
        return run

    def batch(self, size: int = 8, *, keep_caches: bool = False) -> Batch:
        """Return an empty batch, which decodes up to `size` requests in one target pass a round.

        Requests are added at any time and leave when their texts end; each says what it would say alone. Where
        `nodes` is a number, it is shared by all drafts of a pass. While a batch runs, the model belongs to it: nothing
        else may run it in another thread. With `keep_caches` results hold their caches for a next turn's `cache=`.
        """
        if not isinstance(size, int) or size < 1:
            raise UsageError(f"a batch has room for 1 request or more, not {size!r}.")
        return Batch(
            self.prepare,
            self.tokenizer,
            RaggedPass(self.model, self.abilities, fast=self.fast),
            self._batch_sizing(size),
            self._values,
            size=size,
            keep_caches=keep_caches,
        )

    def generate_batch(self, prompts: Iterable[Prompt], *, size: int = 8, **options: Any) -> list[Result]:
        """Return the whole continuations of many prompts, up to `size` of them decoded together.

        Args:
            prompts: each as in `stream`.
            size: the most requests in a pass.
            options: of every request, see `stream`. With a `seed`, request i draws with seed + i. Every request gets
                copies of `logits_processor` and `stopping_criteria`, so that one's state is not another's.

        Raises:
            BatchError: some failed; it holds the results of all.
            PromptError, UnsupportedError, UsageError: a request cannot be decoded; nothing was.
        """
        if isinstance(prompts, str):
            raise UsageError("the prompts are one text; put it into a list, or use `generate`.")
        for name in ("streamer", "cache", "attention_mask", "position_ids"):
            if options.get(name) is not None:
                raise UsageError(f"texts of a batch cannot share `{name}`; give each its own by `batch.add`.")
        batch = self.batch(size)
        seed = options.pop("seed", None)
        stateful = {name: options.pop(name) for name in ("logits_processor", "stopping_criteria") if name in options}
        tickets = []
        for place, prompt in enumerate(prompts):
            own = copy.deepcopy(stateful)
            tickets.append(batch.add(prompt, seed=None if seed is None else seed + place, **own, **options))
        return finish(batch, tickets)

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
            streamer: gets the prompt, then every token, then end(); for one row. Do not pass it to `generate` as well.
            stop: strings that end the text.
            seed: of a random stream of its own; with several rows, row i draws with seed + i.
            tokenizer: for `stop`; the speculator's own if None.
        """
        return Bound(
            begin=self._begin,
            sizing=self.sizing,
            batch=self.batch,
            streamer=streamer,
            stop=stop,
            seed=seed,
            tokenizer=tokenizer or self.tokenizer,
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
        """Stand in for transformers' decoding loop: `model.generate(..., custom_generate=speculator)`; see `Bound`."""
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
        if isinstance(self.nodes, int):
            return FixedSize(self.nodes)
        return BestSize(self._cost, self._values, self._lessons)

    def _batch_sizing(self, size: int) -> BatchSizing:
        if isinstance(self.nodes, int):
            return FixedBudget(self.nodes)
        return BestBudget(RoundCost(most=size - 1 + MOST_NODES), most=MOST_NODES)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Return the token ids of chat messages in the model's template, ready for the next answer.

        Raises:
            TokenizerError: there is no tokenizer, or it has no chat template.
        """
        return self._requests.encode_chat(messages)

    def _begin(self, call: Call, **options: Any) -> Run:
        run = self._requests.run(self.drafter, call, **options)
        self.last_stats = run.stats
        return run
