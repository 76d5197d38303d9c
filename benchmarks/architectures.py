"""Which architectures take trees, chains or nothing.

Every causal model of transformers, tiny and random, is compared with its own `generate`; docs/architectures.md is made
of what is found.

    python benchmarks/architectures.py -o docs/architectures.md
    python benchmarks/architectures.py llama gpt_neo                 only these; the rest of the results stay
    python benchmarks/architectures.py --missing -o docs/architectures.md     only those without results yet
    python benchmarks/architectures.py --report -o docs/architectures.md      the table only, nothing is run
"""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from architecture_matrix.catalogue import names
from architecture_matrix.compare import examine
from architecture_matrix.table import table

RESULTS = Path(__file__).parent / "results" / "architectures.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="model types; all if none are named")
    parser.add_argument("-o", "--out", type=Path, help="write the table there")
    parser.add_argument("--json", type=Path, default=RESULTS, help="the results, which are added to")
    parser.add_argument("--missing", action="store_true", help="only those without results")
    parser.add_argument("--part", default="1/1", help="the k-th of n parts, as k/n")
    parser.add_argument("--report", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known: dict[str, Any] = json.loads(arguments.json.read_text("utf-8")) if arguments.json.exists() else {}
    found = known.get("architectures", {})
    part, parts = (int(each) for each in arguments.part.split("/"))
    wanted = [] if arguments.report else (arguments.names or names())[part - 1 :: parts]
    for name in wanted:
        if arguments.missing and name in found:
            continue
        record = asdict(examine(name))
        found[record.pop("name")] = record
        print(f"{name}: {record['verdict']}, {record['comparisons']} compared, {record['mismatches']}", flush=True)
        versions = {package: version(package) for package in ("torch", "transformers")}
        result = {"versions": versions, "architectures": dict(sorted(found.items()))}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    if arguments.out:
        arguments.out.write_text(table(json.loads(arguments.json.read_text("utf-8")), names()), "utf-8")


if __name__ == "__main__":
    main()
