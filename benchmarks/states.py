"""Measure pass costs of drafts on a model with recurrent states, and the memory of its states and records.

A model of a config's shape with random weights runs passes of each number of rows in turn: a binary tree whose states
are recorded, with transformers' layers and with compiled kernels; and the same rows as a chain with the class's own
functions on a copy of the cache. The sequence is repeated, so that a busy machine affects all alike. The commit of a
path is timed, and bytes are counted.

    python benchmarks/states.py shape.json -o benchmarks/results/states.json
"""

from __future__ import annotations

import argparse
import json
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from speculant.bench.systems.random_weights import random_model
from speculant.engines.hf.cache import state_layers
from speculant.engines.hf.caches.replay_cache import copy_writable
from speculant.engines.hf.cpu.accelerate import prepare_model
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.target_cache import HFTargetCache

ROWS = (1, 2, 4, 8, 16, 32)
PROMPT = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="config.json of the shape")
    parser.add_argument("-o", "--out", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--dtype", default="float32", help="a torch dtype; default: float32")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; default: 1")
    parser.add_argument("--turns", type=int, default=7, help="repetitions per number of rows; default: 7")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = random_model(arguments.config, dtype=arguments.dtype, device="cpu")
    sequence, fast = _opened(HFEngine(model)), _opened(HFEngine(model, acceleration=prepare_model(model, True)))
    passes = {rows: _passes(model, sequence, fast, rows, arguments.turns) for rows in ROWS}
    print(
        f"{'rows':>5} {'tree, ms':>9} {'compiled':>9} {'own chain':>10} {'ratio':>6} {'commit':>7} {'of compiled':>11}"
    )
    for rows, found in passes.items():
        tree, own, commit = found["tree_ms"], found["own_ms"], found["commit_ms"]
        ratios = f"{tree / own:>6.2f} {commit:>7.2f} {commit / found['compiled_ms']:>11.1%}"
        print(f"{rows:>5} {tree:>9.1f} {found['compiled_ms']:>9.1f} {own:>10.1f} {ratios}")
    size = _bytes(sequence)
    print(f"states: {size['state_bytes']:,} bytes a sequence; records: {size['record_bytes_per_row']:,} bytes a row.")
    if arguments.out:
        facts = {"config": json.loads(arguments.config.read_text("utf-8")), "dtype": arguments.dtype}
        facts |= {"threads": arguments.threads, "turns": arguments.turns, "prompt": PROMPT}
        facts |= {"versions": {name: version(name) for name in ("torch", "transformers")}}
        result = facts | size | {"passes": {str(rows): found for rows, found in passes.items()}}
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def _opened(engine: HFEngine) -> HFTargetCache:
    torch.manual_seed(1)
    sequence = engine.open(torch.randint(10, engine.model.config.vocab_size, (1, PROMPT)))
    assert isinstance(sequence, HFTargetCache)
    sequence.prefill()
    return sequence


def _passes(model: Any, sequence: HFTargetCache, fast: HFTargetCache, rows: int, turns: int) -> dict[str, float]:
    """Return median milliseconds of a recorded tree pass, a compiled one, the class's own chain, and a commit."""
    tokens = np.arange(rows, dtype=np.int32) + 20
    parents = np.arange(-1, rows - 1, dtype=np.int32)
    parents[2:] //= 2
    tree, own, commit, compiled = list[float](), list[float](), list[float](), list[float]()
    ids, path = torch.from_numpy(tokens).long()[None], [0]
    while (below := np.flatnonzero(parents == path[-1])).size:
        path.append(int(below[0]))
    for _ in range(turns + 1):  # the first is warm-up
        begin = time.perf_counter()
        sequence.forward(tokens, parents)
        tree.append(time.perf_counter() - begin)
        sequence.rollback()
        begin = time.perf_counter()
        fast.forward(tokens, parents)
        compiled.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        fast.keep(path)
        commit.append(time.perf_counter() - begin)
        cache = copy_writable(sequence.cache)
        begin = time.perf_counter()
        with torch.no_grad():
            model(ids, past_key_values=cache, position_ids=torch.arange(PROMPT, PROMPT + rows)[None])
        own.append(time.perf_counter() - begin)
    named = {"tree_ms": tree, "compiled_ms": compiled, "own_ms": own, "commit_ms": commit}
    return {name: 1000 * median(times[1:]) for name, times in named.items()}


def _bytes(sequence: HFTargetCache) -> dict[str, int]:
    rows = np.arange(8, dtype=np.int32)
    layers = state_layers(sequence.cache)
    held = sum(layer.states_nbytes for layer in layers)
    sequence.forward(rows + 20, rows - 1)
    recorded = sum(layer.recorded_bytes for layer in layers)
    sequence.rollback()
    return {"state_bytes": held, "record_bytes_per_row": recorded // 8}


if __name__ == "__main__":
    main()
