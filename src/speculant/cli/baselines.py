"""The same request decoded in other ways: without drafts, again with drafts, and by transformers' own `generate`."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.cli.comparison import PromptRuns, Timed, pairs_for, time_result
from speculant.options.drafting import DraftingOptions
from speculant.registry import find_method

if TYPE_CHECKING:
    from speculant.api.speculator import Speculator
    from speculant.cli.loading import Loaded
    from speculant.cli.prompts import Message

WARM_UP = "one two one two one two"
WARM_UP_TOKENS, WARM_UP_NODES = 8, 8  # fixed, since so few tokens would end before automatic sizes have grown
THREAD_TOKENS = 16
SLOWER = 1.3  # speed-up on one thread from which a note is printed


class Baselines:
    """Decodes a speculator's requests alternately with and without drafts, without teaching the speculator itself."""

    def __init__(self, loaded: Loaded, options: dict[str, Any], *, memory_limit: int, prompts: int) -> None:
        """Prepare.

        Args:
            loaded: the speculator to compare.
            options: options of `Speculator.stream`.
            memory_limit: maximum bytes of its memory.
            prompts: total number of prompts to compare.
        """
        self._loaded, self._options, self._limit, self._prompts = loaded, options, memory_limit, prompts
        self._speculator = loaded.speculator
        self._plain = self._other("none")
        self._folder = tempfile.TemporaryDirectory(prefix="speculant-")
        self._learned = loaded.start  # the memory of repeated runs

    def warm_up(self) -> list[str]:
        """Decode a few tokens each way, with a separate memory, so that nothing is learned.

        Returns:
            Messages for the user before the runs.
        """
        short = self._options | {"max_new_tokens": WARM_UP_TOKENS}
        memory = self._loaded.memory or self._loaded.start
        same = self._other(self._speculator.method, nodes=WARM_UP_NODES, memory=memory, memory_limit=sys.maxsize)
        self._plain.generate(WARM_UP, **short)
        same.generate(WARM_UP, **short)
        self._reference(WARM_UP, short)
        return self._thread_notes()

    def before(self, prompt: str | Sequence[Message]) -> PromptRuns:
        """Decode plainly and copy the speculator's memory, before it decodes the prompt itself."""
        if find_method(self._speculator.method).keeps_memory:
            self._learned = str(Path(self._folder.name) / "memory")
            self._speculator.save(self._learned)
        exactness = self._speculator.verifier.exactness
        exact = exactness == "tokens" or (exactness == "distribution" and not self._options["temperature"])
        return PromptRuns(plain=[self._plainly(prompt)], exact=exact)

    def after(self, prompt: str | Sequence[Message], comparison: PromptRuns) -> None:
        """Repeat plain and drafted runs alternately, each drafted one with the same memory, and run the reference."""
        first = comparison.plain[0].seconds + comparison.drafted[0].seconds
        for _ in range(1, pairs_for(first, self._prompts)):
            comparison.plain.append(self._plainly(prompt))
            limit = {} if self._learned is None else {"memory": self._learned}
            again = self._other(
                self._speculator.method, nodes=self._speculator.nodes, memory_limit=self._limit, **limit
            )
            result = again.generate(prompt, **self._options)
            comparison.drafted.append(time_result(result))
        comparison.reference = self._reference(prompt, self._options)

    def close(self) -> None:
        """Remove the saved copies."""
        self._folder.cleanup()

    def _other(self, method: str, *, nodes: int | str | None = None, **options: Any) -> Speculator:
        """Return another speculator on the same prepared model.

        A drafter that runs a draft model learns nothing, so the same one is reused.
        """
        speculator = self._speculator
        if find_method(method).takes_draft_model:
            return type(speculator)(
                speculator.model,
                speculator.tokenizer,
                speculator.drafter,
                method=method,
                verifier=speculator.verifier,
                options=DraftingOptions(nodes=nodes, fast=speculator.fast),
            )
        if method != "none":
            options |= {"verifier": self._loaded.verifier, "lossy": speculator.verifier.exactness == "lossy"}
        if method != "none" and self._loaded.settings is not None:
            options["settings"] = self._loaded.settings
        options["base"] = [base.path for base in speculator.bases] if find_method(method).takes_bases else None
        if find_method(method).heads:
            options["head"] = self._loaded.head
        return type(speculator).from_transformers(
            speculator.model, speculator.tokenizer, method=method, nodes=nodes, fast=speculator.fast, **options
        )

    def _plainly(self, prompt: str | Sequence[Message]) -> Timed:
        return time_result(self._plain.generate(prompt, **self._options))

    def _thread_notes(self) -> list[str]:
        """Return a note if plain decoding is clearly faster on one thread than with the current number."""
        import torch

        threads = torch.get_num_threads()
        if threads == 1 or not self._speculator.engine.works_in_thread:
            return []
        short = self._options | {"max_new_tokens": THREAD_TOKENS, "stop": None}
        speeds: dict[int, float] = {}
        try:
            for number in (threads, 1, threads, 1):
                torch.set_num_threads(number)
                speed = self._plain.generate(WARM_UP, **short).stats.tokens_per_second
                speeds[number] = max(speed, speeds.get(number, 0.0))
        finally:
            torch.set_num_threads(threads)
        if speeds[1] < SLOWER * speeds[threads]:
            return []
        note = (
            f"one thread decodes faster than {threads} here, {speeds[1]:.0f} against {speeds[threads]:.0f} tokens/s; "
            "another program may be running. Try --threads 1."
        )
        return [note]

    def _reference(self, prompt: str | Sequence[Message], options: dict[str, Any]) -> Timed | None:
        """Decode by `model.generate`, with the random stream of the seed; None if weights are quantised or it cannot.

        If inputs of products are rounded to 8 bits, the different summation order of PyTorch's attention can flip a
        rounding; and llama.cpp's models have no decoding loop of their own.
        """
        import torch

        from speculant.api.engines import describe_model
        from speculant.api.options import check_stop
        from speculant.engines.hf.sampling.generate_capture import sampling_options
        from speculant.engines.hf.sampling.own_config import leave_out_modes

        speculator = self._speculator
        facts = describe_model(speculator.model)
        if facts.quantized or not facts.generates:
            return None
        model, tokenizer = speculator.model, speculator.tokenizer
        read = tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else speculator.encode_chat(prompt)
        ids = torch.tensor([read], device=model.device)
        positions = speculator.engine.capabilities.positions
        room = options["max_new_tokens"] if positions is None else positions - ids.shape[1]
        own, start = model.generation_config, 1 if model.config.is_encoder_decoder else ids.shape[1]
        chosen = sampling_options(options["temperature"], options["top_p"], options["top_k"])
        chosen |= leave_out_modes(own)  # left out of drafted texts as well
        if stops := [*check_stop(options["stop"]), *check_stop(own.stop_strings)]:
            chosen |= {"stop_strings": stops, "tokenizer": tokenizer}
        with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
            if options["seed"] is not None:
                torch.manual_seed(options["seed"])
            began = time.perf_counter()
            output = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=min(room, options["max_new_tokens"]),
                **chosen,
            )
            new: list[int] = output[0, start:].tolist()
            seconds = time.perf_counter() - began
        return Timed(new, seconds)
