"""Measure target passes of two versions of the source in turns: CPU time of one thread, of a shape with random weights.

Each version runs in a process of its own, and only one of them at a time: a few passes over a chain after 64 cached
tokens, then the other version's, in alternating order. The report holds medians of all turns and the median ratio of
turns side by side. Formats are those of GGUF files, which `cpu_quantised.py` keeps in FILES, or dtypes.

    python benchmarks/pass_versions.py $SHAPE_FOLDER --folder FILES --before OLD/src --after src -o FILE
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np

from versions import VersionProcess

CACHED, PASSES, WARM_UP = 64, 4, 2
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", help="folder of the shape's config.json")
    parser.add_argument("--folder", default="", help="folder of the GGUF files")
    parser.add_argument("--before", type=Path, help="the `src` folder of the earlier version")
    parser.add_argument("--after", type=Path, help="the `src` folder of the later version")
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--formats", default="q8_0,q4_0,q4_k")
    parser.add_argument("--rows", default="1,8")
    parser.add_argument("--turns", type=int, default=11)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        serve(args.worker, Path(args.shape), Path(args.folder))
        return
    report: dict[str, Any] = {"formats": {}}
    if args.out and args.out.exists():
        report = json.loads(args.out.read_text())
    for kind in args.formats.split(","):
        arguments = [args.shape, "--folder", args.folder, "--worker", kind]
        pair = [VersionProcess(__file__, source, *arguments) for source in (args.before, args.after)]
        found = report["formats"].setdefault(kind, {})
        for rows in args.rows.split(","):
            found[rows] = compare(pair, rows, args.turns)
            print(kind, rows, found[rows], flush=True)
            if args.out:
                args.out.write_text(json.dumps(report, indent=1) + "\n")
        for worker in pair:
            worker.close()


def compare(pair: list[VersionProcess], rows: str, turns: int) -> dict[str, Any]:
    """Return the milliseconds per pass of both versions, and their ratio."""
    taken: dict[str, list[float]] = {"before": [], "after": []}
    for turn in range(turns):
        for name, worker in [*zip(taken, pair, strict=True)][:: 1 if turn % 2 else -1]:
            taken[name].append(float(worker.ask(rows)))
    ratios = [after / before for before, after in zip(taken["before"], taken["after"], strict=True)]
    low, _, high = quantiles(ratios, n=4)
    return {
        "milliseconds": {name: round(median(each), 2) for name, each in taken.items()},
        "least": {name: round(min(each), 2) for name, each in taken.items()},
        "ratio": round(median(ratios), 3),
        "quartiles": [round(low, 3), round(high, 3)],
        "turns": turns,
    }


def serve(kind: str, shape: Path, folder: Path) -> None:
    """Answer each number of rows with the milliseconds of CPU time per pass."""
    import torch

    import speculant
    from speculant import Speculator
    from speculant.bench.systems.random_weights import random_model
    from speculant.core.tree import DraftTree
    from speculant.engines.hf.quantized.gguf.loading import plan_model

    print(Path(speculant.__file__).parent, flush=True)
    torch.set_num_threads(1)
    dtype = DTYPES.get(kind)
    model = random_model(shape, dtype=dtype, device="cpu") if dtype else plan_model(folder / f"{kind}.gguf").load()[0]
    engine = Speculator.from_transformers(model, method="none").engine
    vocabulary = min(100_000, engine.capabilities.vocabulary)
    tokens = np.random.default_rng(0).integers(0, vocabulary, CACHED + 64).astype(np.int32)
    cache = engine.open(torch.from_numpy(tokens[: CACHED + 1].astype(np.int64))[None])
    cache.prefill()
    for line in sys.stdin:
        count = int(line)
        nodes = np.arange(count - 1, dtype=np.int32)
        draft = DraftTree(tokens[CACHED + 1 : CACHED + count], nodes - 1, np.ones(count - 1, np.float32))
        gc.collect()
        for place in range(WARM_UP + PASSES):
            if place == WARM_UP:
                began = time.thread_time()
            engine.forward([(cache, int(tokens[CACHED]), draft)])
            cache.rollback()
        print(1e3 * (time.thread_time() - began) / PASSES, flush=True)


if __name__ == "__main__":
    main()
