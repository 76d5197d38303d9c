"""Measure the time of a first start, which compiles the drafter's kernels, and of the next, for two versions.

Each turn runs one command with each version, twice: with an empty cache of kernels, and with what the first run kept.

    python benchmarks/first_start.py --before OLD/src -o benchmarks/results/first-start.json
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMAND = ("-m", "speculant", "generate", "Once upon a time", "--max-new-tokens", "20", "--temperature", "0")
NOW = Path(__file__).parents[1] / "src"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="package sources of an older revision")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    seconds: dict[str, dict[str, dict[str, list[float]]]] = {"cpu": {}, "wall": {}}
    texts = set()
    for _ in range(args.turns):
        for version, source in (("before", args.before), ("after", NOW)):
            with tempfile.TemporaryDirectory() as kernels:
                for start in ("first", "next"):
                    *spent, text = run(source, Path(kernels))
                    for kind, each in zip(seconds, spent, strict=True):
                        seconds[kind].setdefault(version, {}).setdefault(start, []).append(round(each, 2))
                    texts.add(text)
    medians = {
        kind: {
            version: {start: statistics.median(each) for start, each in starts.items()}
            for version, starts in versions.items()
        }
        for kind, versions in seconds.items()
    }
    found = {
        "what": "seconds of `speculant generate` with the bundled model, CPU time of all its processes and wall time, "
        f"on an empty cache of kernels and on a full one, {args.turns} turns of both versions",
        "processors": len(os.sched_getaffinity(0)),
        "command": " ".join(["python", *COMMAND]),
        "seconds": seconds,
        "medians": medians,
        "after / before": {
            kind: {start: round(each["after"][start] / each["before"][start], 3) for start in each["after"]}
            for kind, each in medians.items()
        },
        "same_texts": len(texts) == 1,
    }
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["medians"]), found["after / before"])


def run(source: Path, kernels: Path) -> tuple[float, float, str]:
    """Run the command; return the CPU seconds it took, with its children's, the seconds on the wall, and its output."""
    variables = {"PYTHONPATH": str(source.resolve()), "NUMBA_CACHE_DIR": str(kernels), "OMP_NUM_THREADS": "1"}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, *COMMAND], env=os.environ | variables, check=True, capture_output=True, text=True
    )
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall, done.stdout


if __name__ == "__main__":
    main()
