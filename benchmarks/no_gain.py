"""Measure the cost of drafting when no draft is accepted: seconds per token relative to plain decoding.

Two texts of the same prompt grow alternately in one process: a round of plain decoding and a round with drafts, in
changing order. All times, including those by which sizes are chosen, are CPU time of the process, so that other work on
the machine does not count; prefill is excluded. Drafts fail in two ways: `wrong` replaces each drafted token by
another, so that the method learns and drafts as usual but nothing is accepted; `random` samples at temperature 3, so
that the text is unpredictable. Targets are the bundled model, the same inflated, and the bundled model in llama.cpp as
a GGUF file. Sizes are automatic; what the sizing has learned is kept between requests, as in a server.

    OMP_NUM_THREADS=1 python benchmarks/no_gain.py -o benchmarks/results/no-gain.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from speculant import Speculator
from speculant.api.loading import load_model
from speculant.api.result import Result, Stream
from speculant.bench.demo import SESSION
from speculant.bench.systems.inflate import inflate
from speculant.cli.env import environment
from speculant.core.drafter import Budget, Drafter, Session, SessionRequest
from speculant.core.engine import RequestedOutputs
from speculant.core.tree import DraftTree
from speculant.core.wrapped_session import WrappedSession

TARGETS = ("bundled", "inflated", "gguf")
WAYS = {"wrong": 0.0, "random": 3.0}  # temperature of each
LAYERS, MLP = 12, 4096  # of the inflated model


class WrongDrafter(Drafter):
    """Replaces every token that an inner drafter drafts by another one."""

    def __init__(self, inner: Drafter, vocabulary: int) -> None:
        self._inner, self._vocabulary = inner, vocabulary

    @property
    def needs(self) -> RequestedOutputs:
        return self._inner.needs

    def open(self, start: SessionRequest) -> Session:
        return WrongSession(self._inner.open(start), self._vocabulary)


class WrongSession(WrappedSession):
    """One request."""

    def __init__(self, inner: Session, vocabulary: int) -> None:
        super().__init__(inner)
        self._vocabulary = vocabulary

    def propose(self, budget: Budget) -> DraftTree:
        draft = self.inner.propose(budget)
        return replace(draft, tokens=(draft.tokens + 1) % self._vocabulary)


class Clocked:
    """A text and the CPU seconds of its rounds."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._pieces, self.seconds = stream, iter(stream), 0.0

    def advance(self) -> bool:
        """Run a round; return False at the end of the text."""
        began = time.process_time()
        piece = next(self._pieces, None)
        self.seconds += time.process_time() - began
        return piece is not None

    @property
    def result(self) -> Result:
        return self._stream.result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--methods", default="mix")
    parser.add_argument("--requests", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=200)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for target in args.targets.split(","):
        with tempfile.TemporaryDirectory() as folder:
            model, tokenizer = opened(target, Path(folder))
            for method in args.methods.split(","):
                for way in WAYS:
                    found = measure(model, tokenizer, method, way, requests=args.requests, tokens=args.tokens)
                    rows.append({"target": target, "method": method, "way": way} | found)
                    print(json.dumps({k: v for k, v in rows[-1].items() if k != "requests"}), flush=True)
    facts = {"environment": environment(), "tokens": args.tokens, "rows": rows}
    args.out.write_text(json.dumps(facts, indent=1) + "\n")


def opened(target: str, folder: Path) -> tuple[Any, Any]:
    """Return a target and its tokenizer."""
    model, tokenizer = load_model(None)
    if target == "inflated":
        return inflate(model, layers=LAYERS, mlp=MLP), tokenizer
    if target == "gguf":
        from speculant.engines.llamacpp.gguf_file import write_gguf
        from speculant.engines.llamacpp.options import LlamaCppOptions
        from speculant.engines.llamacpp.request_model import load_gguf

        path = folder / "bundled.gguf"
        write_gguf(model, path, tokenizer=tokenizer)
        return load_gguf(path, LlamaCppOptions(threads=1))
    return model, tokenizer


def measure(model: Any, tokenizer: Any, method: str, way: str, *, requests: int, tokens: int) -> dict[str, Any]:
    """Return the seconds of both sides by request, and their ratios."""
    plain = Speculator.from_transformers(model, tokenizer, method="none")
    drafted = Speculator.from_transformers(model, tokenizer, method=method, base=None, fast=plain.fast)
    if way == "wrong":
        drafted.drafter = WrongDrafter(drafted.drafter, plain.engine.capabilities.vocabulary)
    plain.generate(SESSION[0], max_new_tokens=16)
    met = [play(request, plain, drafted, temperature=WAYS[way], tokens=tokens) for request in range(requests)]
    ratios = [each["drafted"] / each["plain"] for each in met]
    return {
        "median": round(median(ratios), 4),
        "first": round(ratios[0], 4),
        "all": round(sum(each["drafted"] for each in met) / sum(each["plain"] for each in met), 4),
        "accepted": sum(each["accepted"] for each in met),
        "nodes_per_round": round(sum(each["nodes"] for each in met) / sum(each["rounds"] for each in met), 3),
        "asked": round(1 - sum(each["empty"] for each in met) / sum(each["rounds"] for each in met), 4),
        "plain_ms": round(1e3 * median(each["plain"] / each["rounds"] for each in met), 3),
        "requests": met,
    }


def play(request: int, plain: Speculator, drafted: Speculator, *, temperature: float, tokens: int) -> dict[str, Any]:
    """Return the time that one request takes on both sides."""
    options: dict[str, Any] = {"max_new_tokens": tokens, "temperature": temperature, "seed": request}
    prompt = SESSION[request % len(SESSION)]
    sides = [
        Clocked(
            Stream(
                each.prepare(prompt, **options),
                replace(each.parts(), clock=time.process_time, work_clock=time.process_time),
            )
        )
        for each in (plain, drafted)
    ]
    for each in sides:  # prefill
        each.advance()
        each.seconds = 0.0
    for turn in itertools.count():
        went = [each.advance() for each in (sides if turn % 2 else sides[::-1])]
        if not any(went):
            break
    one, other = sides
    if one.result.ids != other.result.ids:
        raise RuntimeError("the texts differ.")
    stats = other.result.stats
    empty = stats.rounds - sum(stats.offered_by_depth[:1])
    return {
        "plain": one.seconds,
        "drafted": other.seconds,
        "rounds": stats.rounds,
        "nodes": stats.drafted,
        "empty": empty,
        "accepted": stats.accepted,
        "sizes": stats.sizes,
    }


if __name__ == "__main__":
    main()
