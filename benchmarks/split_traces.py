"""MAT on the two halves of the development traces.

Settings were tuned on the even requests; the odd ones are held out.

    python benchmarks/split_traces.py -o benchmarks/results/split-traces.json
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from speculant.bench.replay.player import replay
from speculant.bench.replay.traces import read_recordings
from speculant.cli.env import environment
from speculant.registry import BuildContext, build_drafter

NODES, VOCABULARY = 64, 128_256
FILES = ("llama31-8b-gsm8k", "llama31-8b-cnn", "llama31-8b-instructcoder", "llama31-8b-sharegpt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    args = parser.parse_args()
    rows = []
    for file in FILES:
        recordings = list(read_recordings(Path(os.environ["SPECULANT_DATA"]) / f"traces/{file}.jsonl"))
        for method in ("mix", "aded"):
            for part, chosen in {"even": recordings[0::2], "odd": recordings[1::2]}.items():
                played = replay(build_drafter(method, BuildContext(vocabulary=VOCABULARY)), chosen, nodes=NODES)
                rows.append({"file": file, "requests": part, "method": method, "nodes": NODES, "mat": played.mat})
                print(rows[-1], flush=True)
    args.out.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
