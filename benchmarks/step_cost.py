"""Measure the cost of a target pass by rows: transformers, our accelerated pass, llama.cpp, and the machine's limit.

The model has random weights in the shape of a config. Each round times every kind of pass, the memory bandwidth and a
matrix product in the model's dtype once, one after the other in one process; medians and minima over all rounds are
recorded. The limit of a pass is the longer of its weights' bytes / bandwidth and its operations / peak, both the
highest values measured. The peak of a dtype is that of its own products, or of float products if those are faster,
since weights can be converted. llama.cpp runs the same weights over a chain of tokens with logits for each, if
`speculant[llamacpp]` is installed.

    python benchmarks/step_cost.py --config $SPECULANT_DATA/models/shape-0.5b --json benchmarks/results/step-cost.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from speculant.cli.env import environment
from speculant.core.errors import UnsupportedError
from speculant.core.exports import ancestor_mask
from speculant.core.tree import DraftTree
from speculant.engines.hf.cpu.accelerate import CpuAcceleration, prepare_model
from speculant.engines.hf.engine import HFEngine
from speculant.engines.llamacpp.converting import convert
from speculant.engines.llamacpp.opening import open_sequence

READ_BYTES = 1 << 29
SIZE = 1024


def binary_tree(nodes: int) -> DraftTree:
    """Return a draft in which every node has two children."""
    parents = (np.arange(nodes, dtype=np.int32) - 2) // 2
    return DraftTree(np.arange(nodes, dtype=np.int32), np.maximum(parents, -1), np.full(nodes, 0.5, np.float32))


def our_pass(model: Any, prompt: torch.Tensor, fast: CpuAcceleration | None) -> Callable[[int], None]:
    """Return our pass over a number of rows, accelerated or not."""
    engine = HFEngine(model, acceleration=fast)
    cache = engine.open(prompt)
    cache.prefill()

    def run(tokens: int) -> None:
        engine.forward([(cache, 1, binary_tree(tokens - 1))])
        cache.rollback()

    return run


def plain_pass(model: Any, prompt: torch.Tensor) -> Callable[[int], None]:
    """Return transformers' own pass over a number of tokens, with its own growing cache."""
    cache = DynamicCache()
    model(prompt, past_key_values=cache, logits_to_keep=1)
    prefix = prompt.shape[1]

    def run(tokens: int) -> None:
        tree = binary_tree(tokens - 1)
        below = ancestor_mask(tree)
        rows = np.hstack([np.ones((tokens, prefix), bool), below])
        mask = torch.from_numpy(rows)[None, None] if len(tree) else None
        positions = torch.from_numpy(np.append(0, tree.depths()) + prefix)[None]
        ids = torch.ones(1, tokens, dtype=torch.long)
        model(ids, past_key_values=cache, attention_mask=mask, position_ids=positions)
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys[..., :prefix, :], layer.values[..., :prefix, :]

    return run


def llamacpp_pass(model: Any, prompt: torch.Tensor) -> Callable[[int], None]:
    """Return llama.cpp's pass over a chain of tokens."""
    cache = open_sequence(convert(model).context, prompt[0].tolist())
    cache.prefill()

    def run(tokens: int) -> None:
        cache.forward(np.ones(tokens, np.int32), np.arange(-1, tokens - 1, dtype=np.int32))
        cache.rollback()

    return run


def timed(clock: Callable[[], float], call: Callable[..., Any], *given: Any) -> float:
    """Return the seconds of a call."""
    start = clock()
    call(*given)
    return clock() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, required=True, help="a folder with the config.json of a model")
    parser.add_argument("--prefix", type=int, default=256, help="tokens in the cache")
    parser.add_argument("--nodes", default="1,2,4,8,16,32,64", help="rows per pass, including the root")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cpu-time", action="store_true", help="count the CPU time of one thread, for a busy machine")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.cpu_time and args.threads != 1:
        parser.error("--cpu-time is the time of one thread; add --threads 1")
    clock = time.thread_time if args.cpu_time else time.perf_counter
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    torch.manual_seed(1)

    config = AutoConfig.from_pretrained(args.config)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, args.dtype)).eval()
    fast = prepare_model(model, True)
    prompt = torch.randint(1, config.vocab_size, (1, args.prefix))
    passes = {"transformers": plain_pass(model, prompt), "plain": our_pass(model, prompt, None)}
    passes["fast"] = our_pass(model, prompt, fast)
    counts = [int(n) for n in args.nodes.split(",")]
    try:
        passes["llamacpp"] = llamacpp_pass(model, prompt)
    except UnsupportedError as error:
        print(f"without llama.cpp: {error}")
    much, left, right = torch.rand(READ_BYTES // 4), torch.rand(SIZE, SIZE), torch.rand(SIZE, SIZE)
    factors = {dtype: (left.to(dtype), right.to(dtype)) for dtype in {torch.float32, model.dtype}}

    seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
    reading: list[float] = []
    product: dict[torch.dtype, list[float]] = defaultdict(list)
    for tokens in counts:
        for run in passes.values():
            run(tokens)
        for _ in range(args.rounds):
            for name, run in passes.items():
                seconds[name, tokens].append(timed(clock, run, tokens))
            reading.append(timed(clock, much.sum))
            for dtype, both in factors.items():
                product[dtype].append(timed(clock, torch.matmul, *both))

    bandwidth = READ_BYTES / min(reading)
    peaks = {dtype: 2 * SIZE**3 / min(taken) for dtype, taken in product.items()}
    peak = max(peaks.values())
    weights = sum(p.numel() for p in model.parameters())  # a tied embedding counts once, as the output head
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    rows = []
    for tokens in counts:
        limit = max(size / bandwidth, 2 * tokens * weights / peak)
        row: dict[str, Any] = {"tokens": tokens, "limit_ms": limit * 1e3}
        for name in passes:
            taken = seconds[name, tokens]
            row[f"{name}_ms"], row[f"{name}_fastest_ms"] = median(taken) * 1e3, min(taken) * 1e3
        row["speedup"] = row["transformers_fastest_ms"] / row["fast_fastest_ms"]
        row["limit_ratio"] = row["fast_fastest_ms"] / row["limit_ms"]
        rows.append(row)
        print(f"{tokens:4d} rows", *(f"{name} {value:7.2f}" for name, value in row.items() if name != "tokens"))
    print(f"{bandwidth / 1e9:.1f} GB/s;", *(f"{dtype}: {each / 1e9:.0f} GFLOP/s" for dtype, each in peaks.items()))
    print(*fast.notes)
    if args.json is not None:
        record = {
            "machine": environment(model),
            "threads": args.threads,
            "model": args.config.name,
            "parameters": weights,
            "prefix": args.prefix,
            "rounds": args.rounds,
            "clock": "cpu" if args.cpu_time else "wall",
            "bandwidth_gb_s": bandwidth / 1e9,
            "peak_gflop_s": peak / 1e9,
            "peaks_gflop_s": {str(dtype).removeprefix("torch."): each / 1e9 for dtype, each in peaks.items()},
            "kernels": fast.settings()[2],
            "passes": rows,
            # The curve read by `speculant replay`; it must begin with plain decoding.
            "nodes": [tokens - 1 for tokens in counts],
            "seconds": [row["fast_ms"] / 1e3 for row in rows],
        }
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
