"""Compare automatic draft sizes of heads and their unions with a fixed chain and plain decoding, for one version.

Systems alternate on held-out stories, greedy, in one process with one thread; CPU time is counted, so that other work
on the machine has little effect. Runs of the same version are accumulated. To compare two versions of the package, run
them alternately, setting PYTHONPATH. `--head NAME=DIR` names heads other than the bundled ones, and `--fresh N` makes
new systems for every N stories, so that what it costs to find out whether a head pays is counted:

    python benchmarks/heads_auto.py --version after -o FILE
    PYTHONPATH=BEFORE/src python benchmarks/heads_auto.py --version before -o FILE
    python benchmarks/heads_auto.py --markdown FILE
"""

# ruff: noqa: E402

from __future__ import annotations

import time

time.perf_counter = time.process_time  # set before the package imports its clock

import argparse
import json
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch

from speculant import Speculator
from speculant.api.heads import open_head
from speculant.api.loading import bundled_heads
from speculant.cli.env import environment
from speculant.drafters.heads.drafter import LoadedHead
from targets import Pair, load_pair, story_prompts

CHAIN = 5  # nodes; the best fixed size for the bundled autoregressive heads
WARM = 2  # warm-up stories
SECONDS = ("seconds", "draft_seconds", "target_seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, help="results file, which is extended")
    parser.add_argument("--version", help="name of the package version in the results")
    parser.add_argument("--target", choices=("bundled", "inflated"), default="bundled")
    parser.add_argument("--heads", default="eagle,eagle3,mtp,medusa,dflash")
    parser.add_argument("--head", metavar="NAME=DIR", action="append", default=[], help="in place of the bundled heads")
    parser.add_argument("--fresh", type=int, metavar="N", help="stories per system; default: all")
    parser.add_argument("--alone", action="store_true", help="only automatic sizes of the heads alone")
    parser.add_argument("--first", type=int, default=0, help="index of the first story")
    parser.add_argument("--requests", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="print a table of these results")
    args = parser.parse_args()
    if args.markdown:
        print(table(json.loads(args.markdown.read_text("utf-8"))))
        return
    torch.set_num_threads(1)
    pair = load_pair(args.target, dtype="float32", draft_model=None)
    folders = dict(each.split("=", 1) for each in args.head) or bundled_folders(args.heads.split(","))
    systems = make_systems(pair, folders, alone=args.alone)
    prompts = story_prompts(pair.tokenizer, count=args.first + WARM + args.requests, tokens=32)[args.first :]
    results = {"environment": environment(), "versions": {}}
    if args.out.exists():
        results = json.loads(args.out.read_text("utf-8"))
    runs = results["versions"].setdefault(args.version, {}).setdefault(args.target, {})
    for turn, prompt in enumerate(prompts):
        if args.fresh and turn >= WARM and not (turn - WARM) % args.fresh:
            systems = make_systems(pair, folders, alone=args.alone)
        texts, plain = set(), 0.0
        for name, system in systems.items():
            found = system.generate(prompt.tolist(), max_new_tokens=args.tokens, temperature=0)
            texts.add(tuple(found.ids))
            rate = found.stats.tokens / found.stats.seconds
            plain = plain or rate
            if turn >= WARM:
                rows = runs.setdefault(name, {"speedup": [], "tokens": 0, "rounds": 0} | dict.fromkeys(SECONDS, 0.0))
                rows["speedup"].append(round(rate / plain, 4))
                for each in SECONDS:
                    rows[each] = round(rows.get(each, 0.0) + getattr(found.stats, each), 4)
                rows["tokens"] += found.stats.tokens - 1
                rows["rounds"] += found.stats.rounds
        if len(texts) > 1:
            raise SystemExit("the systems do not agree on a text")
    args.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    print(table(results))


def bundled_folders(names: list[str]) -> dict[str, str]:
    """Return the folders of bundled heads."""
    folders = {folder.name: str(folder) for folder in bundled_heads()}
    return {name: folders[name] for name in names}


def make_systems(pair: Pair, folders: dict[str, str], *, alone: bool = False) -> dict[str, Speculator]:
    """Return the systems to measure, plain decoding first."""

    def make(method: str, nodes: int | str, head: LoadedHead | None = None, **settings: Any) -> Speculator:
        own: dict[str, Any] = {} if head is None else {"head": head}
        return Speculator.from_transformers(
            pair.model, pair.tokenizer, method=method, nodes=nodes, settings=settings or None, **own
        )

    found = {"plain": make("none", 0), "mix, automatic": make("mix", "auto")}
    for name, folder in folders.items():
        head = open_head(folder, pair.model)
        found[f"{name}, automatic"] = make(head.method, "auto", head, tree="chain" if name == "dflash" else "dynamic")
        if not alone:
            found[f"{name}, chain of {CHAIN}"] = make(head.method, CHAIN, head, tree="chain")
            found[f"mix and {name}, automatic"] = make("mix-head", "auto", head)
    if alone:
        return found
    useless = open_head(bundled_folders(["eagle"])["eagle"], pair.model)
    modules: Any = useless.head
    with torch.no_grad():
        for weight in modules.parameters():
            weight.copy_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    found["a head that is never right, automatic"] = make(useless.method, "auto", useless, tree="dynamic")
    return found


def table(results: dict[str, Any]) -> str:
    """Return a Markdown table: median and quartiles of each system's speed-up, and tokens per round, by version."""
    lines = list[list[str]]()
    for target in dict.fromkeys(target for each in results["versions"].values() for target in each):
        columns = {name: each[target] for name, each in results["versions"].items() if target in each}
        lines += [[target, *columns], ["---", *["---:"] * len(columns)]]
        for system in dict.fromkeys(system for each in columns.values() for system in each):
            lines.append([system, *(cell(each.get(system)) for each in columns.values())])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(rows: dict[str, Any] | None) -> str:
    if rows is None:
        return "-"
    low, middle, high = quantiles(rows["speedup"], n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f}), MAT {rows['tokens'] / rows['rounds']:.2f}"


if __name__ == "__main__":
    main()
