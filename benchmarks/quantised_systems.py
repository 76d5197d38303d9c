"""The systems compared by benchmarks/cpu_quantised.py: each reads prompts, runs passes, and decodes along outputs.

Speculant's own passes and llama.cpp read the same GGUF file. OpenVINO's weights are written by its own tools. Decoding
is forced along recorded outputs (`bench.systems.forced`); every system computes each pass in full.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from openvino_model import OpenVinoModel, look_up
from speculant import Speculator
from speculant.api.result import Generation, Stream
from speculant.bench.replay.player import replay
from speculant.bench.replay.traces import Recording
from speculant.bench.systems.forced import ForcedSampler, make_forced_components
from speculant.bench.systems.system import WARM_UP_TEXT
from speculant.core.drafter import SessionRequest
from speculant.core.engine import MAX_NODES
from speculant.core.stats import Stats
from speculant.core.tree import DraftTree, Int32
from speculant.decoding.sequence import Sequence as DecodedSequence
from speculant.drafters.mix.base import MixBase
from speculant.drafters.top_tokens import best_token
from speculant.engines.hf.quantized.gguf.loading import plan_model
from speculant.engines.llamacpp.options import LlamaCppOptions
from speculant.engines.llamacpp.request_model import load_gguf

POSITIONS = 2560
LLAMACPP_LOOKUP = 10  # draft tokens, llama-cpp-python's default
OPENVINO_LOOKUP = 5, 3  # draft tokens and longest n-gram, as in OpenVINO GenAI's sample


@dataclass(slots=True)
class Run:
    """Totals of decoded outputs: tokens after the first, target passes, CPU seconds and wall-clock seconds."""

    tokens: int = 0
    passes: int = 0
    cpu: float = 0.0
    wall: float = 0.0

    def add(self, other: Run) -> None:
        """Add another output."""
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


class System(Protocol):
    """A model loaded in one system."""

    @property
    def methods(self) -> Sequence[str]:
        """The names of its decoding methods."""

    def read(self, prompt: Int32) -> None:
        """Begin with a prompt, leaving its last token for the first pass."""

    def open_passes(self) -> Callable[[Int32], object]:
        """Return a function that runs and drops a pass over a chain after the prompt, valid until the next decoding."""

    def decode(self, method: str, prompt: Int32, output: Sequence[int]) -> Run:
        """Decode along an output after the prompt that was read last."""


class EngineSystem:
    """One of Speculant's engines: its own passes, or llama.cpp's.

    Attributes:
        methods: "none", method names, also with "+base", and "lookup:N" for llama-cpp-python's prompt lookup with N
            tokens.
    """

    def __init__(self, model: Any, methods: Sequence[str], base: MixBase | None = None) -> None:
        self.methods = methods
        self._speculators = {name: _speculator(model, name, base) for name in methods if ":" not in name}
        self._engine = self._speculators["none"].engine
        self._text: Any = None

    def read(self, prompt: Int32) -> None:
        self._text, self._prompt = None, prompt
        cache = self._engine.open(_ids(prompt))
        cache.prefill()
        self._text = cache.cache

    def open_passes(self) -> Callable[[Int32], object]:
        cache = self._begin()

        def run(tokens: Int32) -> None:
            self._engine.forward([(cache, int(tokens[0]), _chain(tokens[1:]))])
            cache.rollback()

        return run

    def decode(self, method: str, prompt: Int32, output: Sequence[int]) -> Run:
        if ":" in method:
            return self._look_up(int(method.partition(":")[2]), prompt, output)
        speculator = self._speculators[method]
        ids = _ids(prompt)
        self._engine.crop(self._text, len(prompt) - 1)
        cache, sampler = speculator.engine.open(ids, cache=self._text), ForcedSampler(ids, output)
        stats = Stats(method=method, prompt_tokens=1)
        sequence = DecodedSequence(cache, sampler, SessionRequest(prompt=prompt), stats)
        generation = Generation(sequence, sampler, target=cache)
        pieces = iter(
            Stream(
                generation,
                replace(make_forced_components(speculator), clock=time.process_time, work_clock=time.process_time),
            )
        )
        next(pieces)  # prefill
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in pieces:
            pass
        self._text = cache.cache
        return Run(len(output) - 1, stats.rounds, time.process_time() - cpu, time.perf_counter() - wall)

    def _begin(self) -> Any:
        """Return the prompt's cache without its last token, already prefilled."""
        self._engine.crop(self._text, len(self._prompt) - 1)
        cache = self._engine.open(_ids(self._prompt), cache=self._text)
        cache.prefill()
        self._text = cache.cache
        return cache

    def _look_up(self, count: int, prompt: Int32, output: Sequence[int]) -> Run:
        """Decode with llama-cpp-python's prompt lookup."""
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        drafter, cache = LlamaPromptLookupDecoding(num_pred_tokens=count), self._begin()

        def run(tokens: Int32) -> torch.Tensor:
            logits: torch.Tensor = self._engine.forward([(cache, int(tokens[0]), _chain(tokens[1:]))])[0].logits
            return logits

        return verify_chains(
            run, lambda n: cache.keep(range(n)), lambda text: drafter(text).astype(np.int32), prompt, output
        )


class OpenVinoSystem:
    """OpenVINO, as its GenAI pipelines run models: plain, and with their prompt lookup."""

    methods = ("none", "lookup:" + str(OPENVINO_LOOKUP[0]))

    def __init__(self, folder: Path, threads: int) -> None:
        self.model = OpenVinoModel(folder, threads=threads, positions=POSITIONS)

    def read(self, prompt: Int32) -> None:
        self.model.read(prompt)

    def open_passes(self) -> Callable[[Int32], object]:
        return self.model.forward

    def decode(self, method: str, prompt: Int32, output: Sequence[int]) -> Run:
        self.model.length = len(prompt)
        draft = (lambda text: look_up(text, *OPENVINO_LOOKUP)) if ":" in method else (lambda _: np.empty(0, np.int32))

        def keep(count: int) -> None:
            self.model.length += count

        return verify_chains(lambda tokens: torch.from_numpy(self.model.forward(tokens)), keep, draft, prompt, output)


def verify_chains(
    forward: Callable[[Int32], torch.Tensor],
    keep: Callable[[int], None],
    draft: Callable[[Int32], Int32],
    prompt: Int32,
    output: Sequence[int],
) -> Run:
    """Decode along an output with drafted chains.

    Args:
        forward: returns the logits [n, V] of a pass over n tokens.
        keep: commits the first rows of the last pass.
        draft: returns the draft for a text.
        prompt: the request's prompt.
        output: the request's recorded output.
    """
    ids, done, passes = np.concatenate([prompt, np.array(output, np.int32)]), 1, 0
    cpu, wall = time.process_time(), time.perf_counter()
    while done < len(output):
        end = len(prompt) + done
        found = draft(ids[:end])[: len(output) - done]
        logits = forward(np.concatenate([ids[end - 1 : end], found]))
        accepted, right = 0, ids[end : end + len(found)]
        best_token(logits[:1]).item()
        while accepted < min(len(found), len(output) - done - 1) and found[accepted] == right[accepted]:
            accepted += 1
            best_token(logits[accepted : accepted + 1]).item()
        keep(accepted + 1)
        done, passes = done + accepted + 1, passes + 1
    return Run(len(output) - 1, passes, time.process_time() - cpu, time.perf_counter() - wall)


def open_systems(
    gguf: Path, openvino: Path | None, threads: int, names: Sequence[str], base: MixBase | None = None
) -> Mapping[str, System]:
    """Load and return the systems of a format; Speculant's with method "mix+base" if there is a base."""
    found: dict[str, System] = {}
    if "speculant" in names:
        methods = ("none", "mix") if base is None else ("none", "mix", "mix+base")
        found["speculant"] = EngineSystem(plan_model(gguf).load()[0], methods, base)
    if "llama.cpp" in names:
        model = load_gguf(gguf, LlamaCppOptions(threads=threads, context=POSITIONS))[0]
        found["llama.cpp"] = EngineSystem(model, ("none", "mix", f"lookup:{LLAMACPP_LOOKUP}"))
    if "openvino" in names and openvino is not None:
        found["openvino"] = OpenVinoSystem(openvino, threads)
    return found


def _speculator(model: Any, name: str, base: MixBase | None) -> Speculator:
    """Return a speculator for a method on a model, compiled, with an empty memory."""
    method, _, with_base = name.partition("+")

    def load() -> Speculator:
        return Speculator.from_transformers(model, method=method, base=base if with_base else None)

    speculator = load()
    if method != "none":
        replay(speculator.drafter, [Recording(WARM_UP_TEXT, WARM_UP_TEXT)], nodes=MAX_NODES)
        speculator.drafter = load().drafter
    return speculator


def _chain(tokens: Int32) -> DraftTree:
    nodes = np.arange(len(tokens), dtype=np.int32)
    return DraftTree(tokens, nodes - 1, np.ones(len(nodes), np.float32))


def _ids(tokens: Int32) -> torch.Tensor:
    return torch.from_numpy(tokens.astype(np.int64))[None]
