"""MAT of ADED's two settings and of the official drafter on recorded outputs of real models.

Memory is empty at the start of each file and kept over its requests. The settings of `aded` were chosen on the
even requests of the llama31-8b files; `odd` reports the odd ones alone, which nothing was chosen on.

    python benchmarks/aded_traces.py -o benchmarks/results/aded-traces.json
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from tqdm import tqdm

from speculant.bench.figures import run_figures
from speculant.bench.peers import OfficialAded
from speculant.bench.replay import replay
from speculant.bench.traces import Recording, read_recordings
from speculant.cli.env import environment
from speculant.drafters.aded import AdedDrafter, AdedPaperDrafter
from speculant.drafters.base import Drafter

NODES = 64
KEPT = ("file", "method", "nodes", "tokens", "rounds", "mat", "nodes_per_round", "draft_us", "learn_us", "memory_bytes")
VOCABULARIES = {"llama31": 128_256, "vicuna": 32_000}


def drafters(file: Path) -> dict[str, Drafter]:
    vocabulary = VOCABULARIES[file.name.split("-")[0]]
    return {
        "aded": AdedDrafter(vocabulary=vocabulary),
        "aded-paper": AdedPaperDrafter(vocabulary=vocabulary),
        "peer:draftretriever": OfficialAded(),
    }


def row(file: Path, part: str, name: str, drafter: Drafter, recordings: list[Recording]) -> dict[str, Any]:
    played = replay(drafter, tqdm(recordings, desc=f"{file.stem} {name}", leave=False, disable=None), nodes=NODES)
    found = run_figures(file.stem, name, NODES, played)
    return {"requests": part} | {key: found[key] for key in KEPT}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    args = parser.parse_args()
    rows = []
    for file in sorted(Path(os.environ["SPECULANT_DATA"]).glob("traces/*.jsonl")):
        recordings = list(read_recordings(file))
        for name, drafter in drafters(file).items():
            rows.append(row(file, "all", name, drafter, recordings))
        if file.stem.startswith("llama31-8b") and "runaway" not in file.stem:
            rows.append(row(file, "odd", "aded", drafters(file)["aded"], recordings[1::2]))
        for done in rows[-4:]:
            print(f"{done['file']:28} {done['requests']:4} {done['method']:20} MAT {done['mat']:.3f}", flush=True)
        args.out.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
