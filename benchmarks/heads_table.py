"""Compare trained heads with `mix`, a draft model and their unions: MAT and speed-up of every system in one table.

Each system alternates with plain decoding on held-out stories, greedy, in one process. Systems are chains and trees of
several sizes for every head, and `mix`, `draft-model`, `opt-tree`, and `mix-head` with each head. Results are added to
the file after each system, so an interrupted run continues with the same command.

    python benchmarks/heads_table.py --target bundled -o benchmarks/results/heads-bundled.json
    python benchmarks/heads_table.py --target inflated --requests 10 -o benchmarks/results/heads-inflated.json
    python benchmarks/heads_table.py --markdown benchmarks/results/heads-bundled.json

Without `--head` the bundled heads are measured; `--head NAME=DIR` names a head other than by its folder.

`--alone` measures the heads without unions, as chains, trees and with automatic sizes, in CPU time, so that other work
on the machine has little effect; `--by-head` prints a row per head, with the CPU time of a draft:

    python benchmarks/heads_table.py --alone --requests 12 --head heads/hydra -o benchmarks/results/heads-trained.json
    python benchmarks/heads_table.py --by-head benchmarks/results/heads-trained.json
"""

# ruff: noqa: E402

from __future__ import annotations

import sys
import time

CPU_TIME = "--alone" in sys.argv
if CPU_TIME:
    time.perf_counter = time.process_time  # set before the package imports its clock

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from methods_table import MethodsBench
from speculant.api.heads import open_head
from speculant.api.loading import bundled_heads
from speculant.cli.env import environment
from speculant.cli.threads import set_threads
from speculant.core.errors import SpeculantError, UnsupportedError
from speculant.drafters.heads.drafter import LoadedHead
from targets import TARGETS, load_pair, story_prompts

CHAIN, UNION, TREE = 4, 16, 64  # nodes per draft
CHAIN_OF, TREE_OF, AUTOMATIC = f"chain of {CHAIN}", f"tree of {UNION}", "automatic"
_WIDE = {"tree": "dynamic", "depth": 9, "top_k": 10}  # for 64 nodes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, help="results file, which is extended")
    parser.add_argument("--target", choices=[name for name in TARGETS if name != "stories260k"], default="bundled")
    parser.add_argument("--head", metavar="[NAME=]DIR", action="append", help="default: the bundled heads")
    parser.add_argument("--threads", type=int, help="default: by the model's size, or OMP_NUM_THREADS")
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=96, help="new tokens per request")
    parser.add_argument("--systems", metavar="NAME;...", help="only systems whose names contain one of these")
    parser.add_argument("--again", action="store_true", help="measure again the systems that are in the file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", nargs="+", help="print a table of these results")
    parser.add_argument("--alone", action="store_true", help="heads without unions, in CPU time")
    parser.add_argument("--by-head", type=Path, metavar="FILE", nargs="+", help="print a table with a row per head")
    args = parser.parse_args()
    if args.by_head:
        print(table_by_head([json.loads(path.read_text("utf-8")) for path in args.by_head]))
        return
    if args.markdown:
        print(table([json.loads(path.read_text("utf-8")) for path in args.markdown]))
        return
    if args.out is None:
        parser.error("name a file for the results by -o")
    folders = named_folders(args.head)
    pair = load_pair(args.target, dtype="float32", draft_model=None)
    set_threads(pair.model, args.threads)
    prompts = story_prompts(pair.tokenizer, count=args.requests, tokens=args.prompt_tokens)
    bench = MethodsBench(args.target, pair, prompts, args.tokens)
    results = read(args.out, bench.conditions() | ({"clock": "CPU"} if CPU_TIME else {}))
    heads = open_heads(folders, pair.model, required=args.head is not None)
    results["heads"] |= {name: facts(head, Path(folders[name])) for name, head in heads.items()}
    wanted = (args.systems or "").split(";")
    for system in alone(heads) if args.alone else systems(heads):
        if (system.name in results["systems"] and not args.again) or not any(part in system.name for part in wanted):
            continue
        print(f"=== {system.name}", flush=True)
        results["systems"][system.name] = found = measure(bench, system)
        args.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
        print({key: found.get(key) for key in ("mat", "speedup", "identical", "compared", "skipped")}, flush=True)
    print(table_by_head([results]) if args.alone else table([results]))


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftingSystem:
    """A method with its head, nodes and settings.

    Attributes:
        name: the system's name in the results.
        method: the method's name in the registry.
        nodes: maximum nodes per draft.
        head: name of the head, or None.
        settings: settings of the drafter.
        loaded: the loaded head, or None.
    """

    name: str
    method: str
    nodes: int | str
    head: str | None = None
    settings: Mapping[str, Any] | None = None
    loaded: LoadedHead | None = None


def systems(heads: Mapping[str, LoadedHead]) -> list[DraftingSystem]:
    """Return the systems to measure, in the order of the table."""
    found = [
        DraftingSystem(name=f"mix, {UNION} nodes", method="mix", nodes=UNION),
        DraftingSystem(name=f"mix, {TREE} nodes", method="mix", nodes=TREE),
        DraftingSystem(name=f"draft-model, chain of {CHAIN}", method="draft-model", nodes=CHAIN),
        DraftingSystem(name=f"opt-tree, {TREE} nodes", method="opt-tree", nodes=TREE),
    ]
    for name, head in heads.items():
        own: dict[str, Any] = {"head": name, "loaded": head, "method": head.method}
        found += [
            DraftingSystem(name=f"{name}, chain of {CHAIN}", nodes=CHAIN, settings={"tree": "chain"}, **own),
            DraftingSystem(name=f"{name}, {UNION} nodes", nodes=UNION, settings={"tree": "dynamic"}, **own),
            DraftingSystem(name=f"{name}, {TREE} nodes", nodes=TREE, settings=_WIDE, **own),
            DraftingSystem(name=f"{name}, automatic", nodes="auto", settings={"tree": "dynamic"}, **own),
        ]
        own["method"] = "mix-head"
        found += [DraftingSystem(name=f"mix and {name}, {nodes} nodes", nodes=nodes, **own) for nodes in (UNION, TREE)]
        found.append(DraftingSystem(name=f"mix and {name}, automatic", nodes="auto", **own))
    return found


def alone(heads: Mapping[str, LoadedHead]) -> list[DraftingSystem]:
    """Return the systems of heads that draft alone, and chains with siblings where a GLIDE head is unsure (CaPE)."""
    found = list[DraftingSystem]()
    for name, head in heads.items():
        own: dict[str, Any] = {"head": name, "loaded": head, "method": head.method}
        found += [
            DraftingSystem(name=f"{name}, {CHAIN_OF}", nodes=CHAIN, settings={"tree": "chain"}, **own),
            DraftingSystem(name=f"{name}, {TREE_OF}", nodes=UNION, settings={"tree": "dynamic"}, **own),
            DraftingSystem(name=f"{name}, {AUTOMATIC}", nodes="auto", settings={"tree": "dynamic"}, **own),
        ]
        if head.kind == "glide":
            own["settings"] = {"tree": "cape"}
            found.append(DraftingSystem(name=f"{name} with CaPE, {TREE_OF}", nodes=UNION, **own))
            found.append(DraftingSystem(name=f"{name} with CaPE, {AUTOMATIC}", nodes="auto", **own))
    return found


def named_folders(given: Sequence[str] | None) -> dict[str, str]:
    """Return the folders of heads by name, from "[NAME=]DIR" options or the bundled heads."""
    if given is None:
        return {folder.name: str(folder) for folder in bundled_heads()}
    found: dict[str, str] = {}
    for each in given:
        name, mark, folder = each.partition("=")
        name, folder = (name, folder) if mark else (Path(each).resolve().name, each)
        if name in found:
            raise SystemExit(f"two heads are called {name}; name one by --head NAME=DIR")
        found[name] = folder
    return found


def open_heads(folders: Mapping[str, str], model: Any, *, required: bool) -> dict[str, LoadedHead]:
    """Return the heads on a target; unless they are required, those that do not fit it are left out and named."""
    found = dict[str, LoadedHead]()
    for name, folder in folders.items():
        try:
            found[name] = open_head(folder, model)
        except UnsupportedError as error:
            if required:
                raise
            print(f"{name} is left out: {error}", flush=True)
    return found


def facts(head: LoadedHead, folder: Path) -> dict[str, Any]:
    """Return the properties of a head that are recorded."""
    if isinstance(head.head, nn.Module):
        return {"kind": head.kind, "parameters": sum(weight.numel() for weight in head.head.parameters())}
    trained = json.loads((folder / "training.json").read_text("utf-8"))  # a model of its own
    return {"kind": head.kind, "parameters": trained["parameters"]}


def measure(bench: MethodsBench, system: DraftingSystem) -> dict[str, Any]:
    """Return a system's figures, or the reason why it cannot run."""
    asked = {"method": system.method, "nodes": system.nodes, "head": system.head, "settings": system.settings}
    try:
        figures = bench.figures(system.method, system.nodes, system.settings, head=system.loaded)
    except SpeculantError as error:
        return asked | {"skipped": str(error)}
    return asked | figures


def read(path: Path, conditions: dict[str, Any]) -> dict[str, Any]:
    """Return the results so far, which must have the same conditions."""
    if not path.exists():
        return {"conditions": conditions, "environment": environment(), "heads": {}, "systems": {}}
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    if changed := [key for key in conditions if found["conditions"].get(key) != conditions[key]]:
        raise SystemExit(f"{path} was measured under other conditions ({', '.join(changed)}); name another -o")
    return found


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table with a row per system and columns per target; later results replace earlier ones.

    The speed-up is the ratio of total times.
    """
    by_target: dict[str, dict[str, Any]] = {}
    for each in results:
        by_target.setdefault(each["conditions"]["target"], {}).update(each["systems"])
    targets = list(by_target)
    titles = [title for target in targets for title in (f"{target}: MAT", "speed-up", "drafting", "identical")]
    lines = [["system", *titles], ["---", *["---:"] * len(titles)]]
    for name in dict.fromkeys(name for found in by_target.values() for name in found):
        cells = [name]
        for found in by_target.values():
            row = found.get(name, {})
            cells += ["-"] * 4 if "mat" not in row else [
                f"{row['mat']:.2f}",
                f"{row['speedup']:.2f}",
                "-" if row["time_share"]["draft"] is None else f"{row['time_share']['draft']:.0%}",
                f"{row['identical']}/{row['compared']}",
            ]  # fmt: skip
        lines.append(cells)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table_by_head(results: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table with a row per head and columns per target: MAT, cost of a draft, and speed-up.

    Columns without figures are left out.
    """
    by_target: dict[str, dict[str, Any]] = {}
    for each in results:
        by_target.setdefault(each["conditions"]["target"], {}).update(each["systems"])
    kinds = (CHAIN_OF, TREE_OF, AUTOMATIC)
    figures = {"MAT": lambda row: f"{row['mat']:.2f}", "ms per draft": milliseconds, "speed-up": speedup}
    names = [*dict.fromkeys(name.rpartition(", ")[0] for found in by_target.values() for name in found)]
    columns = [["head", "---", *names]]
    for target, found in by_target.items():
        for title, figure in figures.items():
            for kind in kinds:
                rows = [found.get(f"{name}, {kind}") or {} for name in names]
                if any("mat" in row for row in rows):
                    cells = [figure(row) if "mat" in row else "-" for row in rows]
                    columns.append([f"{target}, {kind}: {title}", "---:", *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in zip(*columns, strict=True))


def milliseconds(row: Mapping[str, Any]) -> str:
    """Return the CPU time of a draft."""
    return f"{1e3 * row['time_share']['draft'] * row['decode_seconds'] / row['rounds']:.1f}"


def speedup(row: Mapping[str, Any]) -> str:
    """Return the median over requests, with quartiles."""
    low, middle, high = row["request_speedup_quartiles"]
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()
