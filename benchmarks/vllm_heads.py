"""Combine a memory with vLLM's own head: MAT of the head, of `mix`, and of both with the uniting scheduler.

    SPECULANT_DATA=... make benchmark-vllm-heads

The bundled model and its heads in vLLM, fp32, greedy, drafts of 5 tokens, 16 requests at a time, memory empty at the
start of each load. `stories`: 50 held-out stories, continued; `rewrites`: 50 held-out stories, rewritten with another
name, which mostly copies; `mixed`: both, alternating. *Perfect* is the MAT of a choice between the two chains that
knows which is accepted further, at the same positions of the texts. *Kept* is the share of its gain over the better
single drafter that the union realises. Time is that of `mix` alone, or of `mix`, uniting and recording.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from speculant.cli.env import environment
from vllm_runs.jobs import RECORDING_SCHEDULER, Ask, Done, Turn, ours, run
from vllm_runs.recording import FOLDER
from vllm_runs.workloads import bundled_head, on_bundled_model, rewrites, stories

DRAFTS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--heads", nargs="+", choices=["eagle", "eagle3"], default=["eagle", "eagle3"])
    args = parser.parse_args()
    data = Path(os.environ["SPECULANT_DATA"])
    first, second = stories(data)[0], rewrites(data)[0]
    loads = {"stories": [first], "rewrites": [second]}
    loads["mixed"] = [[ask for pair in zip(first, second, strict=True) for ask in pair]]
    results: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    results |= {"environment": environment(), "drafts": DRAFTS, "loads": {}} | results
    with tempfile.TemporaryDirectory() as folder:
        plain = run(on_bundled_model(*(Turn(waves=waves) for waves in loads.values())), Path(folder) / "plain")
        texts = dict(zip(loads, [done.outputs for done in plain], strict=True))
        memory = run(on_bundled_model(*(turn(waves, ours(DRAFTS)) for waves in loads.values())), Path(folder) / "mix")
        for name, done in zip(loads, memory, strict=True):
            results["loads"].setdefault(name, {})["mix"] = row(done, texts[name])
        for kind in args.heads:
            measure(kind, loads, texts, results["loads"], Path(folder))
    args.out.write_text(json.dumps(results, indent=1) + "\n")


def measure(
    kind: str,
    loads: dict[str, list[list[Ask]]],
    texts: dict[str, list[list[int]]],
    results: dict[str, Any],
    folder: Path,
) -> None:
    """Add the figures of a head alone and with the memory to the results."""
    head = bundled_head(kind, DRAFTS)
    alone = run(on_bundled_model(*(turn(waves, head) for waves in loads.values())), folder / kind)
    for (name, waves), done in zip(loads.items(), alone, strict=True):
        results[name][kind] = row(done, texts[name])
        drafts = folder / kind / name
        drafts.mkdir(parents=True)
        recorded = turn(waves, head, {FOLDER: str(drafts)})
        (both,) = run(on_bundled_model(recorded, scheduler=RECORDING_SCHEDULER), folder / f"{kind}-{name}")
        results[name][f"{kind} and mix"] = row(both, texts[name]) | choice(drafts / "chains.jsonl")
        for system in (kind, "mix", f"{kind} and mix"):
            print(name, system, results[name][system], flush=True)


def turn(waves: list[list[Ask]], speculative: dict[str, Any], settings: dict[str, str] | None = None) -> Turn:
    """Return a turn with the given speculative settings."""
    return Turn(waves=waves, speculative=speculative, settings=settings or {})


def choice(path: Path) -> dict[str, Any]:
    """Return the mean tokens per step of each chain at the positions of the drafts, and those of a perfect choice."""
    counts = []
    for line in path.read_text().splitlines():
        steps, text = json.loads(line)
        for length, *chains in steps:
            if length < len(text):
                counts.append([common(chain, text[length:]) for chain in chains])
    head, memory, both = (np.array(each) for each in zip(*counts, strict=True))
    perfect, better = np.maximum(head, memory).mean(), max(head.mean(), memory.mean())
    means = {"head": head.mean(), "memory": memory.mean(), "both": both.mean(), "perfect": perfect}
    return {
        "steps": len(head),
        "at_the_same_places": {name: round(1 + float(mean), 4) for name, mean in means.items()},
        "kept": round(float((both.mean() - better) / (perfect - better)), 3),
    }


def common(drafted: Sequence[int], text: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(drafted, text, strict=False)))


def row(done: Done, plain: list[list[int]]) -> dict[str, Any]:
    """Return the figures of a turn; times are those of steps with the largest batch."""
    full = [us / rows for us, rows in zip(done.propose_us, done.rows, strict=True) if rows == max(done.rows)]
    return {
        "vllm": done.version,
        "requests": len(done.outputs),
        "tokens": sum(map(len, done.outputs)),
        "identical": sum(a == b for a, b in zip(done.outputs, plain, strict=True)),
        "mat": round(done.mat, 4),
        "drafted": done.drafted,
        "accepted": done.accepted,
        "us_per_row": round(float(np.median(full)), 1) if full else None,
    }


if __name__ == "__main__":
    main()
