"""Measure the CPU time of a first start, which compiles the drafter's kernels, and of the next, for two versions.

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
from pathlib import Path

COMMAND = ("-m", "speculant", "generate", "Once upon a time", "--max-new-tokens", "20", "--temperature", "0")
NOW = Path(__file__).parents[1] / "src"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="package sources of an older revision")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    seconds: dict[str, dict[str, list[float]]] = {}
    texts = set()
    for _ in range(args.turns):
        for version, source in (("before", args.before), ("after", NOW)):
            with tempfile.TemporaryDirectory() as kernels:
                for start in ("first", "next"):
                    spent, text = run(source, Path(kernels))
                    seconds.setdefault(version, {}).setdefault(start, []).append(round(spent, 2))
                    texts.add(text)
    medians = {
        version: {start: statistics.median(each) for start, each in starts.items()}
        for version, starts in seconds.items()
    }
    found = {
        "what": "CPU seconds of `speculant generate` with the bundled model on an empty cache of kernels and on a full "
        f"one, {args.turns} turns of both versions",
        "command": " ".join(["python", *COMMAND]),
        "seconds": seconds,
        "medians": medians,
        "after / before": {
            start: round(medians["after"][start] / medians["before"][start], 3) for start in medians["after"]
        },
        "same_texts": len(texts) == 1,
    }
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["medians"]), found["after / before"])


def run(source: Path, kernels: Path) -> tuple[float, str]:
    """Run the command; return the CPU seconds it took, with its children's, and what it wrote."""
    variables = {"PYTHONPATH": str(source.resolve()), "NUMBA_CACHE_DIR": str(kernels), "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *COMMAND], env=os.environ | variables, check=True, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


if __name__ == "__main__":
    main()
