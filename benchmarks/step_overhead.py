"""Measure the cost of a round outside the target's pass, for two versions of the source, alternating.

Rounds of `decoding.step` over a recorded output with passes that compute nothing, which leaves the loop itself, sizing,
the drafter, verification and bookkeeping. Workers of both versions run alternately, many short turns each, in the same
order of requests. A turn is timed in CPU seconds of the process, with the garbage collector off. Additional pairs of
processes show the effect of a process's memory layout.

    python benchmarks/step_overhead.py --before OLD/src --after src -o benchmarks/results/step-overhead.json

With `--model`, plain rounds of `Batch` on a model instead, passes included; sizes are numbers of requests.

    python benchmarks/step_overhead.py --before OLD/src --after src --model src/speculant/models/stories \
        --pairs 1 --turns 6 -o benchmarks/results/batch-rounds.json
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from functools import cache
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np

from versions import VersionProcess

VOCABULARY, NODES = 1000, 16
DRAFTERS, SIZES = ("none", "lookup", "mix"), (1, 8)
MODEL_SIZES, MODEL_ROUNDS = (1, 4, 16, 64), 32  # of `--model`
ROUNDS = {"none": 800, "lookup": 400, "mix": 200}  # per turn, so that turns take about the same time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="the `src` folder of the earlier version")
    parser.add_argument("--after", type=Path, help="the `src` folder of the later version")
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--pairs", type=int, default=4, help="pairs of processes, one after the other")
    parser.add_argument("--turns", type=int, default=25, help="turns of each case in each process")
    parser.add_argument("--model", help="a model's folder: time rounds of `Batch` on it")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        serve()
        return
    if args.before is None or args.after is None:
        parser.error("name both versions: --before and --after")
    cases = {f"{drafter}, {size}": (drafter, size) for drafter in DRAFTERS for size in SIZES}
    if args.model:
        folder = str(Path(args.model).resolve())
        cases = {f"plain, {size}": (folder, size) for size in MODEL_SIZES}
    met: dict[str, list[list[dict[str, float]]]] = {name: [] for name in cases}
    for _ in range(args.pairs):
        pair = [VersionProcess(__file__, source, "--worker") for source in (args.before, args.after)]
        for name, (drafter, size) in cases.items():
            met[name].append(turns(pair, drafter, size, args.turns))
        for worker in pair:
            worker.close()
    report = {"nodes": NODES, "pairs": args.pairs, "turns": args.turns, "clock": "process_time"}
    if args.model:
        report["model"], report["rounds"] = args.model, MODEL_ROUNDS
    report["cases"] = {name: compare(found) for name, found in met.items()}
    for name, case in report["cases"].items():
        print(f"{name:10} {case['microseconds']} after/before {case['ratio']} {case['quartiles']} {case['by_pair']}")
    if args.out is not None:
        args.out.write_text(json.dumps(report, indent=1) + "\n")


def turns(pair: list[VersionProcess], drafter: str, size: int, count: int) -> list[dict[str, float]]:
    """Return the seconds of both versions in each turn; the order alternates. The first turns are warm-up."""
    found = []
    for turn in range(-2, count):
        order = [("before", pair[0]), ("after", pair[1])][:: 1 if turn % 2 else -1]
        seconds = {name: float(worker.ask(f"{drafter} {size}")) for name, worker in order}
        if turn >= 0:
            found.append(seconds)
    return found


def compare(pairs: list[list[dict[str, float]]]) -> dict[str, Any]:
    """Return the median ratio of turns, its quartiles, the ratio in each pair, and microseconds per round."""
    every = [turn for pair in pairs for turn in pair]
    ratios = [turn["after"] / turn["before"] for turn in every]
    low, _, high = quantiles(ratios, n=4)
    return {
        "microseconds": {name: round(1e6 * median(turn[name] for turn in every), 2) for name in ("before", "after")},
        "ratio": round(median(ratios), 4),
        "quartiles": [round(low, 4), round(high, 4)],
        "by_pair": [round(median(turn["after"] / turn["before"] for turn in pair), 4) for pair in pairs],
    }


def serve() -> None:
    """Run the turns requested on standard input."""
    import speculant

    print(Path(speculant.__file__).parent, flush=True)
    for line in sys.stdin:
        drafter, size = line.split()
        print(timed_turn(drafter, int(size)), flush=True)


def timed_turn(name: str, size: int) -> float:
    """Return the CPU seconds per round of `size` sequences, measured over many rounds.

    Args:
        name: a drafter, or the folder of a model to decode with.
        size: number of sequences.
    """
    if Path(name).is_dir():
        return timed_batch(name, size)
    from speculant.bench.replay import player
    from speculant.decoding import step as decoding
    from speculant.drafters.copying.lookup import LookupDrafter
    from speculant.drafters.mix.drafter import MixDrafter
    from speculant.drafters.none import NoDrafter
    from speculant.engines.recorded import RecordedEngine
    from speculant.sizing.fixed import FixedSizing
    from speculant.verifiers.sample_then_follow import SampleThenFollow

    drafters: dict[str, Any] = {"none": NoDrafter}
    drafters |= {"lookup": lambda: LookupDrafter(vocabulary=VOCABULARY)}
    drafters |= {"mix": lambda: MixDrafter(vocabulary=VOCABULARY)}
    # Earlier versions use other names.
    components: Any = getattr(decoding, "DecodingComponents", None) or vars(decoding)["Parts"]
    parts = components(
        engine=RecordedEngine(vocabulary=VOCABULARY),
        drafter=drafters[name](),
        verifier=SampleThenFollow(),
        sizing=FixedSizing(0 if name == "none" else NODES),
    )
    begin: Any = getattr(player, "make_recorded_sequence", None) or vars(player)["recorded_sequence"]
    rounds = max(1, ROUNDS[name] // (1 if size == 1 else 4))
    sequences = [begin(recording(seed, 17 * rounds), parts) for seed in range(size)]
    gc.collect()
    gc.disable()
    began = time.process_time()
    for _ in range(rounds):
        decoding.step(sequences, parts)
    seconds = time.process_time() - began
    gc.enable()
    assert all(sequence.active for sequence in sequences)
    return seconds / rounds


def timed_batch(folder: str, size: int) -> float:
    """Return the CPU seconds per round of a batch of `size` requests on a model, after their prompts were read."""
    speculator = loaded(folder)
    with speculator.batch(size) as batch:
        for place in range(size):
            prompt = f"Once upon a time there was a child who had {place} toys and" + " and more" * (place % 5)
            batch.add(prompt, max_new_tokens=MODEL_ROUNDS + 14, temperature=0)
        while len(dict(batch.step())) < size:  # some prompts are not read yet
            pass
        gc.collect()
        gc.disable()
        began = time.process_time()
        tokens = sum(len(piece.tokens) for _ in range(MODEL_ROUNDS) for _, piece in batch.step())
        seconds = time.process_time() - began
        gc.enable()
        assert tokens == size * MODEL_ROUNDS
    return seconds / MODEL_ROUNDS


@cache
def loaded(folder: str) -> Any:
    """Return a model for plain decoding in float32."""
    from speculant.cli.loading import load_speculator
    from speculant.options.drafting import DraftingOptions
    from speculant.options.model import ModelOptions

    loading = ModelOptions(model=folder, dtype="float32", device="cpu", attention=None, fast=None, threads=1)
    return load_speculator(loading, DraftingOptions(method="none")).speculator


def recording(seed: int, length: int) -> Any:
    """Return a text with repeating phrases, so that some drafts are right."""
    from speculant.bench.replay.traces import Recording

    random = np.random.default_rng(seed)
    phrases = [random.integers(0, VOCABULARY, random.integers(2, 12)).astype(np.int32) for _ in range(60)]
    text = np.concatenate([phrases[each] for each in random.integers(0, len(phrases), length // 2 + 200)])
    return Recording(text[:100], text[100 : 100 + length])


if __name__ == "__main__":
    main()
