"""Measure the gain of recording states over copying the cache and rerunning accepted tokens, with recurrent states.

A model of a config's shape with random weights is forced along recorded outputs: by plain decoding, by `mix` with trees
whose states are recorded, and by `mix` with chains whose accepted tokens are run again after a rejection. The three
alternate request by request.

    python benchmarks/states_replay.py benchmarks/shape-qwen3.5-0.8b.json TRACE --limit 2 -o OUT.json
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch

from speculant import Speculator
from speculant.bench.replay.traces import Recording, read_recordings
from speculant.bench.systems.forced import fit_vocabulary, force
from speculant.bench.systems.random_weights import random_model
from speculant.engines.hf.probe import capabilities

SIDES = ("plain", "recorded", "replayed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="config.json of the shape")
    parser.add_argument("trace", type=Path, help="recorded outputs")
    parser.add_argument("-o", "--out", type=Path, required=True, help="write the figures to this JSON file")
    parser.add_argument("--limit", type=int, default=2, help="number of requests; default: 2")
    parser.add_argument("--tokens", type=int, default=120, help="maximum tokens of each output; default: 120")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = random_model(arguments.config, dtype="float32", device="cpu")
    recordings, _ = fit_vocabulary(list(islice(read_recordings(arguments.trace), arguments.limit)), model.vocab_size)
    sides = {side: opened(model, side) for side in SIDES}
    rows = [measured(sides, each, arguments.tokens, turn) for turn, each in enumerate(recordings)]
    for side in SIDES[1:]:
        gains = [row["plain"]["seconds"] / row[side]["seconds"] for row in rows]
        print(f"{side}: {median(gains):.2f} times plain ({min(gains):.2f} to {max(gains):.2f})")
    facts = {name: version(name) for name in ("torch", "transformers")}
    result = {"trace": arguments.trace.stem, "tokens": arguments.tokens, "versions": facts, "requests": rows}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def opened(model: Any, side: str) -> Speculator:
    """Return the speculator of a side; for `replayed`, the model's mixers are treated as unknown."""
    method = "none" if side == "plain" else "mix"
    if side != "replayed":
        return Speculator.from_transformers(model, method=method, base=None)
    with mock.patch.object(capabilities, "find_mixers", return_value=None):
        return Speculator.from_transformers(model, method=method, base=None)


def measured(sides: dict[str, Speculator], recording: Recording, tokens: int, turn: int) -> dict[str, Any]:
    """Return the results of one request on each side; the starting side changes with every turn."""
    found = dict[str, Any]()
    for side in [*SIDES[turn % len(SIDES) :], *SIDES[: turn % len(SIDES)]]:
        _, stats = force(sides[side], recording.prompt, recording.output[:tokens].tolist())
        seconds = stats.seconds - stats.prefill_seconds
        found[side] = {"seconds": seconds, "prompt_seconds": stats.prefill_seconds, "rounds": stats.rounds}
    return found


if __name__ == "__main__":
    main()
