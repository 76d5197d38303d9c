"""Drafts inside vLLM beside vLLM's own `ngram` and `suffix`: MAT, proposal time, identity, sampling.

    make benchmark-vllm        # or, in an environment with vLLM, see docs/vllm.md:
    SPECULANT_DATA=... python benchmarks/vllm_engine.py -o benchmarks/results/vllm.json

All systems decode the same requests, k = 8, each in a process of its own and with an empty memory. `stories`: the
bundled model, fp32, greedy, 50 held-out prompts of 12 words, 40 to 200 tokens, 16 at a time, so that requests join and
leave. `edits`: recorded answers of Llama 3.1 8B to edit requests, replayed by a model that answers each prompt with its
recording; five turns of eight conversations, where each prompt holds the turns before it. `sampling`: the first four
tokens of 3,000 answers to one prompt, and the total variation between systems and plain decoding; the noise floor is
that between two runs of plain decoding.

vLLM's drafters run with vLLM's defaults, and once more with settings that draft more.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from speculant.bench.vllm.jobs import Done, Job, ours, run
from speculant.bench.vllm.workloads import edits, samples, stories, total_variation
from speculant.cli.env import environment

DRAFTS = 8
SAMPLES, SAMPLED_TOKENS, TEMPERATURE = 3000, 4, 0.7
SYSTEMS: dict[str, tuple[dict[str, Any] | None, dict[str, str]]] = {
    "plain": (None, {}),
    "ngram": ({"method": "ngram", "num_speculative_tokens": DRAFTS}, {}),
    "ngram, 2 to 5 tokens": (
        {
            "method": "ngram",
            "num_speculative_tokens": DRAFTS,
            "prompt_lookup_min": 2,
            "prompt_lookup_max": 5,
        },
        {},
    ),
    "suffix": ({"method": "suffix", "num_speculative_tokens": DRAFTS}, {}),
    "suffix, any probability, factor 4": (
        {
            "method": "suffix",
            "num_speculative_tokens": DRAFTS,
            "suffix_decoding_min_token_prob": 0.0,
            "suffix_decoding_max_spec_factor": 4.0,
        },
        {},
    ),
    "speculant mix": (ours(DRAFTS), {}),
    "speculant suffix": (ours(DRAFTS), {"SPECULANT_METHOD": "suffix"}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", default=["stories", "edits", "sampling"])
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS), help="plain comes first")
    args = parser.parse_args()
    data = Path(os.environ["SPECULANT_DATA"])
    results: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    results["environment"], results["drafts"] = environment(), DRAFTS
    with tempfile.TemporaryDirectory() as folder:
        jobs = {"stories": lambda: stories(data), "edits": lambda: edits(data, Path(folder) / "replay")}
        for part in args.parts:
            if part == "sampling":
                results[part] = sampling(Path(folder))
            else:
                results[part] = compared(jobs[part](), Path(folder), part, args.systems)
            args.out.write_text(json.dumps(results, indent=1) + "\n")


def compared(job: Job, folder: Path, part: str, systems: list[str]) -> dict[str, Any]:
    """Return the rows of systems on one job; outputs are compared with those of the first."""
    rows: dict[str, Any] = {}
    plain: list[list[int]] = []
    for name in systems:
        speculative, settings = SYSTEMS[name]
        done = run(replace(job, speculative=speculative), folder / part, environment=settings)
        plain = plain or done.outputs
        rows[name] = row(done, plain)
        print(part, name, rows[name], flush=True)
    return rows


def row(done: Done, plain: list[list[int]]) -> dict[str, Any]:
    """Return the figures of a run."""
    full = [us / rows for us, rows in zip(done.propose_us, done.rows, strict=True) if rows >= max(done.rows) // 2]
    return {
        "vllm": done.version,
        "requests": len(done.outputs),
        "tokens": sum(map(len, done.outputs)),
        "identical": sum(a == b for a, b in zip(done.outputs, plain, strict=True)),
        "mat": round(done.mat, 4),
        "drafted": done.drafted,
        "accepted": done.accepted,
        "largest_batch": max(done.rows, default=0),
        "propose_us_per_row": {
            "median": round(float(np.median(full)), 1) if full else None,
            "mean": round(sum(done.propose_us) / max(1, sum(done.rows)), 1),
        },
        "seconds": round(done.seconds, 2),
    }


def sampling(folder: Path) -> dict[str, Any]:
    """Return total variations of sampled answers against plain decoding, position by position."""
    draws: dict[str, list[list[int]]] = {}
    systems = {"plain, again": None, "ngram": SYSTEMS["ngram"][0], "speculant mix": ours(DRAFTS)}
    for number, (name, speculative) in enumerate({"plain": None, **systems}.items()):
        job = samples(SAMPLES, tokens=SAMPLED_TOKENS, temperature=TEMPERATURE, first_seed=number * SAMPLES)
        draws[name] = run(replace(job, speculative=speculative), folder / "sampling").outputs
    found: dict[str, Any] = {"samples": SAMPLES, "temperature": TEMPERATURE}
    for name in systems:
        found[name] = [
            round(total_variation(draws["plain"], draws[name], length), 4) for length in range(1, SAMPLED_TOKENS + 1)
        ]
        print("sampling", name, found[name], flush=True)
    return found


if __name__ == "__main__":
    main()
