"""Determine which architectures support trees, chains or no drafts.

Every text-generating model of transformers, tiny and random, is compared with its own `generate`: after text, after
media and after an encoder's source. docs/architectures.md is generated from the results.

    python benchmarks/architectures.py -o docs/architectures.md
    python benchmarks/architectures.py llama gpt_neo                 only these; other results are kept
    python benchmarks/architectures.py AutoModelForSeq2SeqLM         only the classes of this mapping
    python benchmarks/architectures.py AutoModelForSeq2SeqLM/bart    only this one
    python benchmarks/architectures.py --missing -o docs/architectures.md     only those without results
    python benchmarks/architectures.py --report -o docs/architectures.md      write the tables without running models
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
from architecture_matrix.compare import Found, examine
from architecture_matrix.compare_sources import examine_with_source
from architecture_matrix.sources import GROUPS, source_names
from architecture_matrix.table import page

RESULTS = Path(__file__).parent / "results" / "architectures.json"
TEXT = ""  # the group of text-only models


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="model types, Auto classes, or AUTO_CLASS/TYPE; default: all")
    parser.add_argument("-o", "--out", type=Path, help="file to write the tables to")
    parser.add_argument("--json", type=Path, default=RESULTS, help="results file, which is extended")
    parser.add_argument("--missing", action="store_true", help="only those without results")
    parser.add_argument("--part", default="1/1", help="run only part k of n, as k/n")
    parser.add_argument("--report", action="store_true", help="only write the tables")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known: dict[str, Any] = json.loads(arguments.json.read_text("utf-8")) if arguments.json.exists() else {}
    part, parts = (int(each) for each in arguments.part.split("/"))
    wanted = [] if arguments.report else [place for each in arguments.names for place in _places(each)] or _all()
    for group, name in wanted[part - 1 :: parts]:
        kept = known.setdefault("sources" if group else "architectures", {})
        found = kept.setdefault(group, {}) if group else kept
        if arguments.missing and name in found:
            continue
        record = asdict(_examine(group, name))
        found[record.pop("name")] = record
        place = f"{group}/{name}" if group else name
        print(f"{place}: {record['verdict']}, {record['comparisons']} compared, {record['mismatches']}", flush=True)
        known["versions"] = {package: version(package) for package in ("torch", "transformers")}
        arguments.json.write_text(json.dumps(_sorted(known), indent=1) + "\n", "utf-8")
    if arguments.out:
        arguments.out.write_text(page(json.loads(arguments.json.read_text("utf-8")), names()), "utf-8")


def _places(asked: str) -> list[tuple[str, str]]:
    """Return the pairs of group and model type that an argument selects."""
    group, _, name = asked.partition("/")
    if group not in GROUPS:
        return [(TEXT, asked)]
    return [(group, each) for each in ([name] if name else source_names(group))]


def _all() -> list[tuple[str, str]]:
    return [(TEXT, name) for name in names()] + [place for group in GROUPS for place in _places(group)]


def _examine(group: str, name: str) -> Found:
    return examine_with_source(group, name) if group else examine(name)


def _sorted(known: dict[str, Any]) -> dict[str, Any]:
    """Return the results in the order of the file."""
    sources = known.get("sources", {})
    return {
        "versions": known["versions"],
        "architectures": dict(sorted(known.get("architectures", {}).items())),
        "sources": {group: dict(sorted(sources[group].items())) for group in GROUPS if group in sources},
    }


if __name__ == "__main__":
    main()
