"""Compare drafts inside vLLM with vLLM's own `ngram` and `suffix`: MAT, proposal time, identity, sampling.

    SPECULANT_DATA=... make benchmark-vllm

All systems decode the same requests with k = 8, one after the other in one engine whose drafter is replaced, each with
an empty memory. `stories`: the bundled model, fp32, greedy, 50 held-out prompts of 12 words, 40 to 200 tokens, 16 at a
time, so that requests join and leave. `edits`: recorded answers of Llama 3.1 8B to edit requests, replayed by a model
that answers each prompt with its recording; eight conversations of five turns, where each prompt contains the earlier
turns. `sampling`: the first four tokens of 3,000 answers to one prompt, and their total variation distance from plain
decoding; the noise floor is the distance between two runs of plain decoding.

vLLM's drafters run with vLLM's defaults, and also with settings that draft more.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from speculant.cli.env import environment
from vllm_runs.jobs import Ask, Done, Turn, ours, run
from vllm_runs.workloads import edits, on_bundled_model, on_recordings, samples, stories, total_variation

DRAFTS = 8
SAMPLES, SAMPLED_TOKENS, TEMPERATURE = 3000, 4, 0.7
NGRAM = {"method": "ngram", "num_speculative_tokens": DRAFTS}
SUFFIX = {"method": "suffix", "num_speculative_tokens": DRAFTS}
SYSTEMS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "suffix": (SUFFIX, {}),
    "suffix, any probability, factor 4": (
        {**SUFFIX, "suffix_decoding_min_token_prob": 0.0, "suffix_decoding_max_spec_factor": 4.0},
        {},
    ),
    "ngram": (NGRAM, {}),
    "ngram, 2 to 5 tokens": ({**NGRAM, "prompt_lookup_min": 2}, {}),
    "speculant mix": (ours(DRAFTS), {}),
    "speculant mix, probability 0.02": (ours(DRAFTS), {"SPECULANT_LEAST_PROBABILITY": "0.02"}),
    "speculant mix, probability 0.1": (ours(DRAFTS), {"SPECULANT_LEAST_PROBABILITY": "0.1"}),
    "speculant suffix": (ours(DRAFTS), {"SPECULANT_METHOD": "suffix"}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", choices=["bundled", "edits"], default=["bundled", "edits"])
    args = parser.parse_args()
    data = Path(os.environ["SPECULANT_DATA"])
    results: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    results["environment"], results["drafts"] = environment(), DRAFTS
    with tempfile.TemporaryDirectory() as folder:
        if "bundled" in args.parts:
            results |= bundled(data, Path(folder))
        if "edits" in args.parts:
            results["edits"] = conversations(data, Path(folder))
    args.out.write_text(json.dumps(results, indent=1) + "\n")


def bundled(data: Path, folder: Path) -> dict[str, Any]:
    """Return the figures of the bundled model: stories and sampled answers."""
    waves = stories(data)
    plain = run(on_bundled_model(Turn(waves=waves), drawn(0), drawn(1)), folder / "plain")
    # vLLM's sampling runs first, since building our proposer fixes it for the whole process.
    turns = [drawn(2, SUFFIX), *turns_of(waves), drawn(3, ours(DRAFTS))]
    before, *done, after = run(on_bundled_model(*turns), folder / "bundled")
    found = {
        "samples": SAMPLES,
        "temperature": TEMPERATURE,
        "plain, again": variations(plain[1], plain[2]),
        "suffix, as vLLM is": variations(plain[1], before),
        "speculant mix": variations(plain[1], after),
    }
    print(found, flush=True)
    return {"stories": rows("stories", done, plain[0].outputs), "sampling": found}


def conversations(data: Path, folder: Path) -> dict[str, Any]:
    """Return the figures of the replayed edit conversations."""
    waves = edits(data, folder / "replay")
    plain = run(on_recordings(folder / "replay", Turn(waves=waves)), folder / "plain")
    done = run(on_recordings(folder / "replay", *turns_of(waves)), folder / "edits")
    return rows("edits", done, plain[0].outputs)


def turns_of(waves: list[list[Ask]]) -> list[Turn]:
    """Return one turn per system."""
    return [Turn(waves=waves, speculative=each, settings=settings) for each, settings in SYSTEMS.values()]


def drawn(number: int, speculative: dict[str, Any] | None = None) -> Turn:
    """Return a turn of sampled answers; seeds depend on its number."""
    asks = samples(SAMPLES, tokens=SAMPLED_TOKENS, temperature=TEMPERATURE, first_seed=number * SAMPLES)
    return Turn(waves=asks, speculative=speculative)


def variations(first: Done, second: Done) -> list[float]:
    """Return the total variation distance over the first one, two, ... tokens."""
    lengths = range(1, SAMPLED_TOKENS + 1)
    return [round(total_variation(first.outputs, second.outputs, length), 4) for length in lengths]


def rows(part: str, done: list[Done], plain: list[list[int]]) -> dict[str, Any]:
    """Return the figures of all systems."""
    found = {name: row(each, plain) for name, each in zip(SYSTEMS, done, strict=True)}
    for name, each in found.items():
        print(part, name, each, flush=True)
    return found


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
        "largest_batch": max(done.rows, default=0),
        "propose_us_per_row": {
            "median": round(float(np.median(full)), 1) if full else None,
            "mean": round(sum(done.propose_us) / max(1, sum(done.rows)), 1),
        },
        "seconds": round(done.seconds, 2),
    }


if __name__ == "__main__":
    main()
