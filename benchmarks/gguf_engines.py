"""Time passes of Speculant's engine and llama.cpp's over one GGUF file, alternating in one process; and its loading.

    python benchmarks/gguf_engines.py SHAPE --folder FILES --out benchmarks/results/gguf-engines.json

SHAPE is the folder of a config; files with random weights are written to FILES unless they exist. Times are the CPU
time of the single thread that runs a pass over a chain after 64 cached tokens: medians of rounds in which both engines
run every size once. Each file has its own process. Memory is the growth of its resident set while the file is loaded;
loading time is wall-clock time with the file in the page cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from llamacpp import make_files
from speculant.api.engines import find_engine
from speculant.api.gguf_engine import choose_engine
from speculant.cli.env import environment
from speculant.core.tree import DraftTree
from speculant.engines.hf.cpu.build import load_native
from speculant.engines.llamacpp.options import LlamaCppOptions
from speculant.engines.llamacpp.request_model import load_gguf

ROWS = (1, 2, 3, 4, 6, 8, 16, 32)
PREFIX = 64
OWN, LLAMACPP = "speculant", "llamacpp"


def main() -> None:
    """Run all formats and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", type=Path)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--formats", default="q8_0,q4_0,q4_k")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gguf-engines.json"))
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.file is not None:
        print(json.dumps(measure(asked.file, asked.rounds)))
        return
    formats = asked.formats.split(",")
    make_files(asked.shape, asked.folder, formats)
    load_native()  # the first start compiles it
    found = {kind: measure_apart(asked, kind) for kind in formats}
    asked.out.write_text(json.dumps({"environment": environment(), "rows": ROWS, "files": found}, indent=2) + "\n")
    for kind, each in found.items():
        print(kind, json.dumps(each["loading"]))
        for engine in (OWN, LLAMACPP):
            print(f"  {engine:10}", *(f"{1e3 * seconds:7.1f}" for seconds in each[engine]))


def measure_apart(asked: argparse.Namespace, kind: str) -> dict[str, Any]:
    """Measure a format in a separate process, so that its memory can be attributed to the file."""
    file = asked.folder / f"{kind}.gguf"
    command = [sys.executable, __file__, str(asked.shape), "--folder", str(asked.folder), "--file", str(file)]
    command += ["--rounds", str(asked.rounds)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def measure(path: Path, rounds: int) -> dict[str, Any]:
    """Return seconds of passes by engine and rows, and time and memory of loading with Speculant's engine."""
    before, began = resident(), time.perf_counter()
    planned = choose_engine(path, engine=OWN).planned
    assert planned is not None
    model, _ = planned.load()
    loading = {
        "seconds": time.perf_counter() - began,
        "resident_bytes": resident() - before,
        "stated_bytes": planned.plan.packed_bytes + planned.plan.float_bytes,
        "file_bytes": path.stat().st_size,
    }
    theirs, _ = load_gguf(path, LlamaCppOptions(threads=1, context=512, sequences=4))
    engines = {
        name: find_engine(each).open(each, fast=None, notes=(), strict=True)
        for name, each in ((OWN, model), (LLAMACPP, theirs))
    }
    samples: dict[str, list[list[float]]] = {name: [[] for _ in ROWS] for name in engines}
    with torch.no_grad():
        caches = {name: engine.open(torch.ones((1, PREFIX), dtype=torch.long)) for name, engine in engines.items()}
        for cache in caches.values():
            cache.prefill()
        for number in range(rounds + 1):
            for place, rows in enumerate(ROWS):
                for name, engine in engines.items():
                    seconds = time_pass(engine, caches[name], rows)
                    if number:  # the first of each size allocates
                        samples[name][place].append(seconds)
    medians = {name: [statistics.median(each) for each in samples[name]] for name in engines}
    return {"loading": loading, "kinds": model.config.weight_kinds, **medians}


def time_pass(engine: Any, cache: Any, rows: int) -> float:
    """Return the CPU seconds of a pass over a root and a chain below it; only the root is committed."""
    nodes = rows - 1
    tree = DraftTree(np.ones(nodes, np.int32), np.arange(nodes, dtype=np.int32) - 1, np.ones(nodes, np.float32))
    began = time.thread_time()
    result = engine.forward([(cache, 1, tree)])[0]
    engine.read([result.logits.argmax(-1)])
    cache.keep([0])
    return time.thread_time() - began


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


if __name__ == "__main__":
    main()
