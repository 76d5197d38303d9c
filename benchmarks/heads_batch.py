"""Batches with trained heads: tokens per second of `Speculator.batch` at several sizes, compared with plain decoding.

In every repetition all systems decode the same new held-out stories, greedy, in batches of the given size, one system
after the other in one process; the order rotates. Ratios are computed within a repetition. A system keeps what it has
learned over the repetitions of a size; the first repetition is not counted. Heads are the bundled ones, with their
usual methods and automatic sizes. Results are written after each size.

    python benchmarks/heads_batch.py -o benchmarks/results/heads-batch.json
    python benchmarks/heads_batch.py --markdown benchmarks/results/heads-batch.json

The results also contain the milliseconds of drafting alone with EAGLE-family heads, for chains of four tokens and
several texts: requested for each text separately and for all together, alternating. Other heads keep what they have
computed for a draft.

`--version` adds the figures of another version of the library, found through PYTHONPATH, to the same file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from speculant.api.heads import open_head
from speculant.api.loading import bundled_heads
from speculant.api.speculator import Speculator
from speculant.bench.suite.rows import PLAIN
from speculant.cli.env import environment
from speculant.cli.threads import set_threads
from speculant.core.drafter import Budget
from speculant.core.tree import Int32
from targets import load_pair, story_prompts

MIX = "mix"
STEPPING = ("eagle", "eagle3")  # heads that run again for every level of a repeated draft request
DRAFT, DRAFTS = Budget(nodes=4, depth=4, trees=False), 15
SETTINGS = ("target", "threads", "requests", "repetitions", "prompt_tokens", "tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, help="results file, which is extended")
    parser.add_argument("--version", default="now", help="name of the figures in the file")
    parser.add_argument("--target", choices=("bundled", "inflated"), default="bundled")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sizes", default="1,2,4,8,16", help="requests decoded together")
    parser.add_argument("--systems", help="default: mix and every bundled head; plain decoding is always included")
    parser.add_argument("--requests", type=int, default=16, help="requests per repetition")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64, help="new tokens per request")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="print a table of these results")
    args = parser.parse_args()
    if args.markdown:
        print(table(json.loads(args.markdown.read_text("utf-8"))))
        return
    pair = load_pair(args.target, dtype="float32", draft_model=None)
    set_threads(pair.model, args.threads)
    stories = story_prompts(pair.tokenizer, count=args.requests * (args.repetitions + 1), tokens=args.prompt_tokens)
    names = args.systems.split(",") if args.systems else [MIX, *(folder.name for folder in bundled_heads())]
    results = read(args.out)
    own = results.setdefault(args.version, {"sizes": {}})
    own |= {"conditions": {name: getattr(args, name) for name in SETTINGS}, "environment": environment(pair.model)}
    for size in map(int, args.sizes.split(",")):
        systems = {name: build(pair.model, name) for name in (PLAIN, *names)}
        waves = [stories[first : first + args.requests] for first in range(0, len(stories), args.requests)]
        own["sizes"].setdefault(str(size), {}).update(measure(systems, waves, size, args.tokens))
        heads = {name: system for name, system in systems.items() if name in STEPPING}
        drafting = {name: measure_drafting(system, stories[:size]) for name, system in heads.items()}
        own.setdefault("drafting_ms", {}).setdefault(str(size), {}).update(drafting)
        if args.out is not None:
            args.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    print(table(results))


def build(model: Any, name: str) -> Speculator:
    """Return a system: a method without a head, or a bundled head (named by its folder) with its own method."""
    if name in (PLAIN, MIX):
        return Speculator.from_transformers(model, method=name)
    [folder] = [folder for folder in bundled_heads() if folder.name == name]
    return Speculator.from_transformers(model, head=open_head(folder, model))


def measure(
    systems: Mapping[str, Speculator], waves: Sequence[Sequence[Int32]], size: int, tokens: int
) -> dict[str, dict[str, Any]]:
    """Return the figures of every system over all waves of prompts except the first."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in systems}
    for turn, prompts in enumerate(waves):
        order = [*systems]
        order = order[turn % len(order) :] + order[: turn % len(order)]
        found = {name: decode(systems[name], prompts, size, tokens) for name in order}
        texts = {name: run.pop("ids") for name, run in found.items()}
        for name, run in found.items():
            same = zip(texts[name], texts[PLAIN], strict=True)
            run |= {"identical": sum(a == b for a, b in same), "compared": len(prompts)}
            run["speedup"] = run["tokens_per_second"] / found[PLAIN]["tokens_per_second"]
            runs[name].append(run)
    return {name: summary(own[1:]) for name, own in runs.items()}


def decode(speculator: Speculator, prompts: Sequence[Int32], size: int, tokens: int) -> dict[str, Any]:
    """Return the texts of a wave of prompts, with time and counts of the batch."""
    with speculator.batch(size) as batch:
        generations = [batch.add(prompt, max_new_tokens=tokens, temperature=0) for prompt in prompts]
        for _ in batch:
            pass
        stats = batch.stats
    return {
        "ids": [generation.result.ids for generation in generations],
        "tokens": stats.tokens,
        "tokens_per_second": stats.tokens_per_second,
        "mat": (stats.tokens - len(prompts)) / stats.sequences,
        "round_ms": 1e3 * (stats.seconds - stats.prefill_seconds) / stats.rounds,
        "drafted_per_round": stats.drafted / stats.sequences,
        "draft_share": stats.draft_seconds / (stats.seconds - stats.prefill_seconds),
    }


def measure_drafting(speculator: Speculator, prompts: Sequence[Int32]) -> dict[str, float]:
    """Return the milliseconds of drafts for several texts, requested for each separately and for all together."""
    with speculator.batch(len(prompts)) as batch:
        generations = [batch.add(prompt, max_new_tokens=16, temperature=0) for prompt in prompts]
        while not all(generation.sequence.sources for generation in generations):
            batch.step()
        drafter = speculator.parts(len(prompts)).drafter
        sessions = [
            generation.sequence.session for generation in generations if generation.sequence.session is not None
        ]
        budgets = [DRAFT] * len(sessions)
        ways: dict[str, Callable[[], object]] = {
            "apart": lambda: [drafter.propose([session], [DRAFT]) for session in sessions],
            "together": lambda: drafter.propose(sessions, budgets),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(DRAFTS):
            for name, draft in ways.items():
                began = time.perf_counter()
                draft()
                seconds[name].append(time.perf_counter() - began)
    return {name: 1e3 * statistics.median(each[1:]) for name, each in seconds.items()}


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return medians over repetitions, with the minimum and maximum ratio and all ratios."""
    figures = ("tokens_per_second", "speedup", "mat", "round_ms", "drafted_per_round", "draft_share")
    found: dict[str, Any] = {name: statistics.median(run[name] for run in runs) for name in figures}
    found["speedup_range"] = [min(run["speedup"] for run in runs), max(run["speedup"] for run in runs)]
    found |= {name: sum(run[name] for run in runs) for name in ("identical", "compared")}
    return found | {"runs": [dict(run) for run in runs]}


def read(path: Path | None) -> dict[str, Any]:
    """Return the results of the file so far."""
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path is not None and path.exists() else {}
    return found


def table(results: Mapping[str, Any]) -> str:
    """Return a Markdown table: a row per version and system, with speed-up and tokens per round at each size."""
    sizes = list(dict.fromkeys(size for own in results.values() for size in own["sizes"]))
    lines = [["version", "system", *(f"{size}: speed-up (MAT)" for size in sizes)]]
    lines.append(["---", "---", *["---:"] * len(sizes)])
    for version, own in results.items():
        for name in dict.fromkeys(name for found in own["sizes"].values() for name in found):
            cells = [own["sizes"].get(size, {}).get(name) for size in sizes]
            lines.append(
                [
                    version,
                    name,
                    *("-" if each is None else f"{each['speedup']:.2f} ({each['mat']:.2f})" for each in cells),
                ]
            )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
