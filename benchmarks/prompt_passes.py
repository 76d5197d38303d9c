"""Read prompts in passes of several sizes, and in one pass of transformers, in turns in one process.

The model has random weights in the shape of a config, or those of *inflated*. Every turn reads a new prompt of random
tokens once in each way; CPU time of one thread, of which the minimum over all turns and the median ratio to one pass
over the whole prompt are kept.

    python benchmarks/prompt_passes.py --shape $SPECULANT_DATA/models/shape-0.5b --dtype float32 \
        -o benchmarks/results/prompt-passes.json

Results are added to the file under the name of the shape and the dtype.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from speculant.cli.env import environment
from speculant.engines.hf.cpu.accelerate import CpuAcceleration, prepare_model
from speculant.engines.hf.engine import HFEngine
from targets import load_pair

WHOLE = "one pass"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True, help="results file, which is extended")
    parser.add_argument("--shape", default="inflated", help="folder of a config; default: the inflated model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--rows", type=int, nargs="+", default=[128, 256, 512], help="prompt tokens per pass")
    parser.add_argument("--turns", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(args.shape, args.dtype)
    engine = HFEngine(model, acceleration=prepare_model(model, True))
    found = {str(tokens): measure(engine, tokens, args.rows, args.turns) for tokens in args.tokens}
    results = json.loads(args.out.read_text("utf-8")) if args.out.exists() else {"models": {}}
    results["environment"] = environment(engine.model)
    name = f"{Path(args.shape).name}, {args.dtype}"
    weights = sum(weight.numel() for weight in model.parameters())
    results["models"][name] = {"parameters": weights, "turns": args.turns, "tokens": found}
    args.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    for tokens, ways in found.items():
        for way, figures in ways.items():
            print(f"{name}, {tokens} tokens, {way}: {figures['seconds']:.2f} s, {figures['speedup']:.2f}x")


def load_model(shape: str, dtype: str) -> Any:
    """Return the model of a shape."""
    if shape == "inflated":
        return load_pair(shape, dtype=dtype, draft_model=None).model
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(shape), dtype=getattr(torch, dtype)).eval()


def measure(engine: HFEngine, tokens: int, rows: list[int], turns: int) -> dict[str, dict[str, float]]:
    """Return seconds per prompt and the speed-up over one pass, by the way of reading it."""
    ways: dict[str, Callable[[torch.Tensor], Any]] = {"transformers": partial(read_plainly, engine.model)}
    ways |= {WHOLE: partial(read, engine, tokens)}
    ways |= {f"passes of {count}": partial(read, engine, count) for count in rows}
    random, seconds = np.random.default_rng(0), {way: list[float]() for way in ways}
    for turn in range(turns + 1):
        ids = torch.from_numpy(random.integers(5, engine.capabilities.vocabulary - 1, (1, tokens)))
        for way, run in ways.items():
            began = time.thread_time()
            run(ids)
            if turn:  # the first turn is warm-up
                seconds[way].append(time.thread_time() - began)
    ratios = {
        way: median(whole / own for whole, own in zip(seconds[WHOLE], times, strict=True))
        for way, times in seconds.items()
    }
    return {way: {"seconds": min(times), "speedup": ratios[way]} for way, times in seconds.items()}


def read_plainly(model: Any, ids: torch.Tensor) -> None:
    """Read a prompt by transformers' own code."""
    with torch.inference_mode():
        model(ids, use_cache=True, logits_to_keep=1)


def read(engine: HFEngine, rows: int, ids: torch.Tensor) -> None:
    """Read a prompt in passes of at most `rows` tokens."""
    with patch.object(CpuAcceleration, "prompt_rows", rows), torch.inference_mode():
        engine.open(ids).prefill()


if __name__ == "__main__":
    main()
