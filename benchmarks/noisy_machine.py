"""Compare automatic draft sizes with plain decoding and fixed sizes while other processes keep every core busy.

The bundled model, greedy, fp32, `mix`, on prompts of `stories.py`. All systems decode each prompt one after the other,
in a changing order, so that they see the same load; each has its own memory. In the first half of the time every prompt
is new; then the same prompts are repeated, so that drafts are good. The busy processes are started and stopped here;
with `--quiet` there are none.

    OMP_NUM_THREADS=1 python benchmarks/noisy_machine.py -o benchmarks/results/noisy-machine.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from speculant import Speculator
from speculant.api.loading import load_model
from speculant.api.options import AUTO
from speculant.core.stats import Stats
from stories import cut_prompts

SYSTEMS = (0, 4, 8, 16, AUTO)
RESAMPLES = 2000
BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(100_000))"  # also ends when this process ends


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=200.0, help="duration of the measurement")
    parser.add_argument("--tokens", type=int, default=80, help="maximum tokens per text")
    parser.add_argument("--quiet", action="store_true", help="start no busy processes")
    args = parser.parse_args()
    if "SPECULANT_DATA" not in os.environ:
        parser.error("set SPECULANT_DATA to the folder with the texts")
    prompts = cut_prompts(Path(os.environ["SPECULANT_DATA"]) / "text/tinystories")
    cores = len(os.sched_getaffinity(0))
    with busy_cores(0 if args.quiet else cores):
        phases = measure(prompts, seconds=args.seconds, tokens=args.tokens)
    facts = {"cores": cores, "busy": 0 if args.quiet else cores, "threads": torch.get_num_threads()}
    report = {**facts, "tokens": args.tokens, "phases": {name: compare(met) for name, met in phases.items()}}
    for name, phase in report["phases"].items():
        print(name, {k: round(v, 1) for k, v in phase["tokens_per_second"].items()}, phase["sizes"], sep="\n  ")
        print(f"  adaptive over the best other, {phase['best_other']}: {phase['adaptive_of_best']}")
    args.out.write_text(json.dumps(report, indent=1) + "\n")


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Keep `count` cores busy inside the context."""
    neighbours = [subprocess.Popen([sys.executable, "-c", BUSY, str(os.getpid())]) for _ in range(count)]
    try:
        yield
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()


def measure(prompts: list[str], *, seconds: float, tokens: int) -> dict[str, dict[str, list[Stats]]]:
    """Return the statistics of each system's requests, for new prompts and for the same prompts again."""
    model, tokenizer = load_model(None)
    systems: dict[str, Speculator] = {}
    fast = None
    for size in SYSTEMS:
        made = Speculator.from_transformers(model, tokenizer, method="mix" if size else "none", nodes=size, fast=fast)
        systems[str(size)], fast = made, made.fast
        Speculator.from_transformers(model, tokenizer, nodes=8, fast=fast).generate(prompts[-1], max_new_tokens=20)
    phases: dict[str, dict[str, list[Stats]]] = {}
    done = len(prompts)
    for name in ("new prompts", "same prompts again"):
        began, met = time.perf_counter(), dict[str, list[Stats]]((system, []) for system in systems)
        for turn, prompt in enumerate(prompts[:done]):
            if name == "new prompts" and time.perf_counter() - began > seconds / 2:
                done = turn
                break
            texts = set()
            for system in np.roll(list(systems), turn).tolist():
                result = systems[system].generate(prompt, max_new_tokens=tokens, temperature=0)
                met[system].append(result.stats)
                texts.add(tuple(result.ids))
            assert len(texts) == 1, prompt
        phases[name] = met
    return phases


def compare(met: dict[str, list[Stats]]) -> dict[str, Any]:
    """Return each system's throughput, and automatic sizing's relative to the best other with a bootstrap interval."""
    tokens = {system: np.array([each.tokens - 1 for each in stats], float) for system, stats in met.items()}
    seconds = {
        system: np.array([each.seconds - each.prefill_seconds for each in stats]) for system, stats in met.items()
    }
    rates = {system: float(tokens[system].sum() / seconds[system].sum()) for system in met}
    best = max((system for system in met if system != AUTO), key=rates.__getitem__)
    picks = np.random.default_rng(0).integers(0, len(seconds[best]), (RESAMPLES, len(seconds[best])))
    ratios = seconds[best][picks].sum(1) / seconds[AUTO][picks].sum(1)  # all systems decode the same texts
    return {
        "requests": len(seconds[best]),
        "tokens_per_second": rates,
        "best_other": best,
        "adaptive_of_best": rates[AUTO] / rates[best],
        "interval_95": np.quantile(ratios, [0.025, 0.975]).tolist(),
        "seconds": {system: each.tolist() for system, each in seconds.items()},
        "nodes_per_round": {s: sum(x.drafted for x in each) / sum(x.rounds for x in each) for s, each in met.items()},
        "sizes": met[AUTO][-1].sizes,
    }


if __name__ == "__main__":
    main()
