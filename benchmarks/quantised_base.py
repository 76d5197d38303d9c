"""Build a base of a target's own outputs, for cpu_quantised.py to decode with.

The target is Llama-3.1-8B as recorded in SPECULANT_DATA; the texts are those requests of the four files, prompts
included, that cpu_quantised.py with the same limits does not decode.

    python benchmarks/quantised_base.py -o BASE --requests 20 --max-prompt 400 --json FILE
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np

from cpu_quantised import FILES, select_short
from mix_base import BUDGET, built_base, trained
from mix_corpora import VOCABULARIES
from speculant.bench.replay.traces import read_recordings
from speculant.cli.env import environment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=20, help="requests per file that are left out")
    parser.add_argument("--max-prompt", type=int, default=1024, help="maximum prompt tokens of those left out")
    parser.add_argument("--json", type=Path, required=True, help="file for the figures of the base")
    args = parser.parse_args()
    texts = []
    for file in FILES:
        recordings = list(read_recordings(Path(os.environ["SPECULANT_DATA"]) / "traces" / f"llama31-8b-{file}.jsonl"))
        left_out = {id(each) for each in select_short(recordings, args.max_prompt)[: args.requests]}
        texts += [np.concatenate([each.prompt, each.output]) for each in recordings if id(each) not in left_out]
    texts = [texts[place] for place in np.random.default_rng(0).permutation(len(texts))]
    _, facts = built_base(args.out, {"chat": texts}, VOCABULARIES["llama3"], BUDGET, trained)
    args.json.write_text(json.dumps({"environment": environment(), "texts": len(texts), **facts}, indent=1) + "\n")


if __name__ == "__main__":
    main()
