"""Time bf16 and fp32 passes before and after a change of the compiled code, alternating in one process.

The model has random weights in the shape of a config. Passes before the change run the sources of an older revision,
compiled with that revision's flags, on weights in ordinary pages; passes after it run the current code on the same
weights in huge pages. All products use the compiled kernels; none is chosen by measurement, which is noisy on a busy
machine. Each turn times both passes and reading half a gigabyte, one after the other. The minimum over all turns
counts, since other programs only add time. CPU time is recorded with one thread, wall-clock time always.

    git archive REVISION src/speculant/engines/hf/cpu | tar x -C OLD
    python benchmarks/float_passes.py --config $SPECULANT_DATA/models/shape-0.5b \
        --before OLD/src/speculant/engines/hf/cpu --json benchmarks/results/float-passes.json
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import json
import subprocess
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from speculant.cli.env import environment
from speculant.engines.hf.cpu import accelerate
from speculant.engines.hf.cpu.build import KINDS, SIGNATURES, load_native
from speculant.engines.hf.cpu.huge_pages import use_huge_pages
from speculant.engines.hf.cpu.kernel_table import ROW_COUNTS, Shape, Times
from speculant.engines.hf.cpu.products import Products
from step_cost import our_pass

READ_BYTES = 1 << 29
OLD_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-w")


def compiled(sources: Path, flags: list[str]) -> ctypes.CDLL:
    """Compile the sources of an older revision and return the library."""
    folder = Path(tempfile.mkdtemp())
    objects = []
    for source in sorted(sources.glob("*.cpp")):
        objects.append(str(folder / f"{source.stem}.o"))
        subprocess.run(["g++", *flags, "-c", str(source), "-o", objects[-1]], check=True)
    subprocess.run(["g++", "-shared", "-Wl,-Bsymbolic", *objects, "-o", str(folder / "before.so")], check=True)
    library = ctypes.CDLL(str(folder / "before.so"))
    for name, (arguments, result) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = KINDS.get(result), [KINDS[kind] for kind in arguments]
    return library


def prepared(model: Any, native: ctypes.CDLL, *, huge: bool) -> Any:
    """Return the acceleration of a model by the kernels of one library."""

    def times(modules: Iterable[nn.Linear], products: Products, **_: int) -> dict[Shape, Times]:
        kernels = products.available(model.dtype)
        best = "bf16_dot" if "bf16_dot" in kernels else "compiled"
        each: Times = {kernel: [1.0 if kernel == best else 2.0] * len(ROW_COUNTS) for kernel in kernels}
        return {(module.out_features, module.in_features): each for module in modules}

    with ExitStack() as stack:
        stack.enter_context(patch.object(accelerate, "load_native", lambda: native))
        stack.enter_context(patch.object(accelerate, "kernel_times", times))
        if not huge:
            stack.enter_context(patch.object(accelerate, "use_huge_pages", lambda _: 0))
        return accelerate.prepare_model(model, True)


def measure(args: argparse.Namespace, before: ctypes.CDLL, dtype: str, threads: int) -> list[dict[str, Any]]:
    """Return the figures for one dtype and number of threads, by rows."""
    torch.set_num_threads(threads)
    config = AutoConfig.from_pretrained(args.config)
    torch.manual_seed(1)
    old = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval()
    new = copy.deepcopy(old)
    prompt = torch.randint(1, config.vocab_size, (1, args.prefix))
    native, passes = load_native(), {}
    for name, model, library in (("before", old, before), ("after", new, native)):
        passes[name] = our_pass(model, prompt, prepared(model, library, huge=name == "after"))
    moved = use_huge_pages(new.parameters())  # a second call finds nothing left to move
    size = sum(parameter.nbytes for parameter in new.parameters())
    much = torch.empty(READ_BYTES // 4 + (1 << 20)).fill_(1)
    use_huge_pages([much])
    found = []
    for rows in args.rows:
        runs = {name: partial(run, rows) for name, run in passes.items()} | {"reading": much.sum}
        wall: dict[str, list[float]] = {name: [] for name in runs}
        own: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(args.turns + 1):
            for name, run in runs.items():
                started, thread = time.perf_counter(), time.thread_time()
                run()
                if turn:  # the first turn is warm-up
                    own[name].append(time.thread_time() - thread)
                    wall[name].append(time.perf_counter() - started)
        figures: dict[str, Any] = {
            "dtype": dtype,
            "threads": threads,
            "rows": rows,
            "bytes": size,
            "in_huge_pages": moved,
        }
        clocks = {"wall": wall, "thread": own} if threads == 1 else {"wall": wall}
        for clock, seconds in clocks.items():
            limit = size * min(seconds["reading"]) / much.nbytes
            figures[clock] = {
                "before_ms": min(seconds["before"]) * 1e3,
                "after_ms": min(seconds["after"]) * 1e3,
                "before_median_ms": median(seconds["before"]) * 1e3,
                "after_median_ms": median(seconds["after"]) * 1e3,
                "gain": min(seconds["before"]) / min(seconds["after"]),
                "reading_gb_s": much.nbytes / min(seconds["reading"]) / 1e9,
                "before_limits": min(seconds["before"]) / limit,
                "after_limits": min(seconds["after"]) / limit,
            }
        print(json.dumps(figures), flush=True)
        found.append(figures)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, required=True, help="a folder with the config.json of a model")
    parser.add_argument("--before", type=Path, required=True, help="folder of an older revision's C++ sources")
    parser.add_argument("--before-flags", default=" ".join(OLD_FLAGS), help="compiler flags of the older revision")
    parser.add_argument("--prefix", type=int, default=64, help="tokens in the cache")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 32])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    before = compiled(args.before, args.before_flags.split())
    passes = [
        figures
        for dtype in args.dtypes
        for threads in args.threads
        for figures in measure(args, before, dtype, threads)
    ]
    if args.json is not None:
        record = {"machine": environment(), "model": args.config.name, "prefix": args.prefix, "turns": args.turns}
        args.json.write_text(json.dumps(record | {"passes": passes}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
