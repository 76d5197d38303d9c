"""Compare llama.cpp with drafts to llama.cpp without, and to llama-cpp-python's own prompt lookup.

A shape with random weights, written as GGUF in several formats and removed afterwards, is forced along recorded
outputs: every pass is computed, but the next token comes from the recording. The systems alternate on each request in
one process, in a changing order, so that a slow spell of the machine affects all. A prompt is read once and its KV
cache serves every system, so that only decoding is compared; `with_prompt` adds the prefill time to each. Memories are
initially empty and kept across requests. `--systems plain,mix` omits the others. Prompt lookup is llama-cpp-python's
`LlamaPromptLookupDecoding` with its default of 10 tokens, and with the 2 that its README recommends for CPUs, verified
in one pass by the same engine. On a busy machine, count the CPU time of one thread: `--threads 1 --cpu-time`.

    python benchmarks/llamacpp.py $SHAPE $TRACES/llama31-8b-instructcoder.jsonl -o benchmarks/results/llamacpp.json
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from speculant import Speculator
from speculant.api.result import Generation, Stream
from speculant.bench.replay.player import replay
from speculant.bench.replay.traces import Recording, read_recordings
from speculant.bench.systems.forced import ForcedSampler, fit_vocabulary, make_forced_components
from speculant.bench.systems.random_weights import random_model
from speculant.bench.systems.system import WARM_UP_TEXT
from speculant.cli.env import environment
from speculant.core.drafter import SessionRequest
from speculant.core.engine import MAX_NODES
from speculant.core.stats import Stats
from speculant.core.tree import DraftTree
from speculant.decoding.sequence import Sequence as DecodedSequence
from speculant.engines.llamacpp.engine import LlamaEngine
from speculant.engines.llamacpp.gguf_file import write_gguf
from speculant.engines.llamacpp.library import load_library
from speculant.engines.llamacpp.options import LlamaCppOptions
from speculant.engines.llamacpp.quantize import quantize
from speculant.engines.llamacpp.request_model import LlamaCppModel, load_gguf
from speculant.engines.llamacpp.texts import LlamaText

FORMATS = ("bf16", "q8_0", "q4_0", "q4_k")
ROWS, REPEATS = (*range(1, 18), 20, 24, 32), 7
SYSTEMS = ("plain", "mix", "prompt-lookup:2", "prompt-lookup:10")
CONTEXT = 2048


@dataclass(slots=True)
class Run:
    """Counts of one request with one system: tokens after the first, target passes, and seconds."""

    tokens: int = 0
    passes: int = 0
    seconds: float = 0.0
    target_seconds: float = 0.0
    draft_seconds: float = 0.0

    def add(self, other: Run) -> None:
        """Add another request."""
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


System = Callable[[np.ndarray[Any, np.dtype[np.int32]], list[int], LlamaText], Run]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", type=Path, help="config.json of the shape, or its folder")
    parser.add_argument("traces", type=Path, help="recorded outputs")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=1 << 30, help="maximum tokens per output")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cpu-time", action="store_true", help="count the CPU time of one thread, for a busy machine")
    parser.add_argument("--folder", type=Path, help="keep the GGUF files in this folder and reuse existing ones")
    args = parser.parse_args()
    if args.cpu_time and args.threads != 1:
        parser.error("--cpu-time is the time of one thread; add --threads 1")
    clock = time.thread_time if args.cpu_time else time.perf_counter
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory(prefix="speculant-") as temporary:
        folder = args.folder or Path(temporary)
        formats = args.formats.split(",")
        make_files(args.shape, folder, formats)
        recordings = list(read_recordings(args.traces))[: args.requests]
        report: dict[str, Any] = {
            "environment": environment() | {"llama_cpp_python": load_library().version},
            "clock": "cpu" if args.cpu_time else "wall",
            "shape": args.shape.name,
            "traces": args.traces.stem,
            "requests": len(recordings),
            "token_limit": min(args.tokens, max(len(each.output) for each in recordings)),
            "formats": {},
        }
        for kind in formats:
            report["formats"][kind] = measure(
                folder / f"{kind}.gguf", recordings, args.systems.split(","), args.tokens, args.threads, clock
            )
            args.out.write_text(json.dumps(report, indent=1) + "\n")


def make_files(shape: Path, folder: Path, formats: Sequence[str]) -> None:
    """Write the shape with random weights in each format."""
    source = folder / "bf16.gguf"
    if not source.exists():
        write_gguf(random_model(shape, dtype="bfloat16", device="cpu"), source)
        gc.collect()
    for kind in formats:
        if not (folder / f"{kind}.gguf").exists():
            quantize(source, folder / f"{kind}.gguf", kind)


def measure(
    file: Path,
    recordings: Sequence[Recording],
    names: Sequence[str],
    maximum: int,
    threads: int,
    clock: Callable[[], float],
) -> dict[str, Any]:
    """Return the figures of one format."""
    model, _ = load_gguf(file, LlamaCppOptions(threads=threads, context=CONTEXT))
    fitted, _ = fit_vocabulary(recordings, model.config.vocab_size)
    systems = {name: system(model, name, clock) for name in names}
    engine = LlamaEngine(model, model.context)
    totals = {name: Run() for name in systems}
    requests: list[dict[str, Any]] = []
    prompt_seconds = 0.0
    for place, each in enumerate(fitted):
        prompt, output = each.prompt, each.output[:maximum].tolist()
        began = clock()
        cache = engine.open(torch.from_numpy(prompt.astype(np.int64))[None])
        cache.prefill()
        prompt_seconds += clock() - began
        row = dict[str, Any]()
        for name in [*names[place % len(names) :], *names[: place % len(names)]]:
            cache.text.crop(len(prompt) - 1)
            run = systems[name](prompt, output, cache.text)
            totals[name].add(run)
            row[name] = asdict(run)
        engine.context.drop(cache.text)
        requests.append(row)
        print(file.stem, place + 1, {name: round(ratio(totals, name), 2) for name in systems}, flush=True)
    return {
        "weights": model.dtype,
        "row_costs": row_costs(engine, fitted[0].prompt, clock),
        "prompt_seconds": prompt_seconds,
        "speed_up": {name: ratio(totals, name) for name in systems},
        "with_prompt": {name: ratio(totals, name, prompt_seconds) for name in systems},
        "mat": {name: run.tokens / run.passes for name, run in totals.items()},
        "overhead": {name: 1 - run.target_seconds / run.seconds for name, run in totals.items()},
        "totals": {name: asdict(run) for name, run in totals.items()},
        "requests": requests,
    }


def row_costs(engine: LlamaEngine, prompt: np.ndarray[Any, np.dtype[np.int32]], clock: Callable[[], float]) -> Any:
    """Return the cost of passes over chains relative to one row: medians of alternating runs."""
    cache = engine.open(torch.from_numpy(prompt.astype(np.int64))[None])
    cache.prefill()
    seconds: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for _ in range(REPEATS):
        for rows, found in seconds.items():
            nodes = np.arange(rows - 1, dtype=np.int32)
            began = clock()
            engine.forward([(cache, int(prompt[-1]), DraftTree(nodes, nodes - 1, np.ones(rows - 1, np.float32)))])
            found.append(clock() - began)
            cache.rollback()
    engine.context.drop(cache.text)
    return {rows: float(np.median(found) / np.median(seconds[1])) for rows, found in seconds.items()}


def ratio(totals: dict[str, Run], name: str, more: float = 0.0) -> float:
    """Return a system's speed relative to plain decoding, with `more` seconds added to both."""
    return (totals["plain"].seconds + more) / (totals[name].seconds + more)


def system(model: LlamaCppModel, name: str, clock: Callable[[], float]) -> System:
    """Return a system by name; "plain" is decoding without drafts."""
    method, _, count = name.partition(":")
    return lookup(model, int(count), clock) if count else ours(model, "none" if name == "plain" else method, clock)


def ours(model: LlamaCppModel, method: str, clock: Callable[[], float]) -> System:
    """Return one of our methods, with its own memory."""
    speculator = Speculator.from_transformers(model, method=method)
    if method != "none":
        replay(speculator.drafter, [Recording(WARM_UP_TEXT, WARM_UP_TEXT)], nodes=MAX_NODES)
        speculator.drafter = Speculator.from_transformers(model, method=method).drafter

    def run(prompt: np.ndarray[Any, np.dtype[np.int32]], output: list[int], text: LlamaText) -> Run:
        ids = torch.from_numpy(prompt.astype(np.int64))[None]
        cache, sampler = speculator.engine.open(ids, cache=text), ForcedSampler(ids, output)
        stats = Stats(method=method, prompt_tokens=1)
        sequence = DecodedSequence(cache, sampler, SessionRequest(prompt=prompt), stats)
        generation = Generation(sequence, sampler, target=cache)
        pieces = iter(Stream(generation, replace(make_forced_components(speculator), clock=clock, work_clock=clock)))
        next(pieces)  # the prompt's pass
        began, before = clock(), stats.draft_seconds
        for _ in pieces:
            pass
        seconds = clock() - began
        return Run(len(output) - 1, stats.rounds, seconds, stats.target_seconds, stats.draft_seconds - before)

    return run


def lookup(model: LlamaCppModel, count: int, clock: Callable[[], float]) -> System:
    """Return llama-cpp-python's prompt lookup with drafts of `count` tokens."""
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    engine, drafter = LlamaEngine(model, model.context), LlamaPromptLookupDecoding(num_pred_tokens=count)

    def run(prompt: np.ndarray[Any, np.dtype[np.int32]], output: list[int], text: LlamaText) -> Run:
        cache = engine.open(torch.from_numpy(prompt.astype(np.int64))[None], cache=text)
        cache.prefill()
        result, done = Run(tokens=len(output) - 1), 1
        ids = np.concatenate([prompt, np.array(output, np.int32)])
        began = clock()
        while done < len(output):
            drafting = clock()
            end = len(prompt) + done
            found = drafter(ids[:end])[: len(output) - done - 1]
            tree = DraftTree(
                found.astype(np.int32), np.arange(-1, len(found) - 1, dtype=np.int32), np.ones(len(found), np.float32)
            )
            passing = clock()
            logits = engine.forward([(cache, int(ids[end - 1]), tree)])[0].logits
            accepted = 0
            logits[0].argmax().item()
            while accepted < len(found) and found[accepted] == output[done + accepted]:
                accepted += 1
                logits[accepted].argmax().item()
            result.target_seconds += clock() - passing
            result.draft_seconds += passing - drafting
            result.passes += 1
            cache.keep(range(accepted + 1))
            done += accepted + 1
        result.seconds = clock() - began
        return result

    return run


if __name__ == "__main__":
    main()
