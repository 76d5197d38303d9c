"""Compare the bundled early-exit adapter with plain decoding, and time its parts.

Held-out stories, greedy and at temperature 1. Each system alternates with plain decoding on each prompt in one process,
and CPU time is counted, so that other work on the machine has little effect. With `kept`, the target's pass continues
from the rows that drafting left after the first layers; with `again`, it runs all layers on all rows, as before. Then
the CPU time of a full pass, of a continued pass, and of drafting a chain with its rows.

    python benchmarks/exits.py -o benchmarks/results/exits-bundled.json

With `--model`, `early-exit` on a model that was trained for it (LayerSkip):

    python benchmarks/exits.py --model FOLDER -o benchmarks/results/exits-layerskip.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from speculant import Speculator
from speculant.api.loading import bundled_heads, load_model
from speculant.cli.env import environment
from speculant.core.drafter import Budget, Session
from speculant.core.tree import DraftTree, Int32
from speculant.drafters.heads.session import HeadSession
from targets import load_pair, story_prompts

SYSTEMS: dict[str, dict[str, Any]] = {
    "kangaroo, automatic": {"method": "kangaroo"},
    **{
        f"kangaroo, {n} tokens": {"method": "kangaroo", "nodes": n, "settings": {"threshold": 0.0}}
        for n in (1, 2, 3, 4)
    },
    "kangaroo, 3 tokens, again": {"method": "kangaroo", "nodes": 3, "settings": {"threshold": 0.0}, "again": True},
    "kangaroo, 6 tokens, threshold 0.6": {"method": "kangaroo", "nodes": 6, "settings": {"threshold": 0.6}},
    "early-exit without trained exits, 2 tokens": {"method": "early-exit", "nodes": 2},
}
LAYERS: dict[str, dict[str, Any]] = {
    f"early-exit after layer {layer}, {size}": {
        "method": "early-exit",
        "nodes": nodes,
        "settings": {"layer": layer} | ({} if nodes == "auto" else {"stop": "none"}),
    }
    for layer in (1, 2)
    for size, nodes in (("automatic", "auto"), ("2 tokens", 2), ("3 tokens", 3), ("4 tokens", 4))
}
NEW_ROWS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--model", type=Path, help="a model trained to exit early; default: the bundled adapter")
    args = parser.parse_args()
    torch.set_num_threads(1)
    pair = load_pair("bundled", dtype="float32", draft_model=None)
    if args.model is not None:
        pair = replace(pair, model=load_model(str(args.model), dtype="float32")[0])
    prompts = story_prompts(pair.tokenizer, count=args.requests + 1, tokens=args.prompt_tokens)
    plain = open_system(pair, {"method": "none"})
    rows: list[dict[str, Any]] = []
    for temperature in (0.0, 1.0):
        for name, given in (LAYERS if args.model else SYSTEMS).items():
            if temperature and "again" in given:
                continue
            found = compare(plain, open_system(pair, given), prompts, args.tokens, temperature)
            rows.append({"system": name, "temperature": temperature, **found})
            print(rows[-1], flush=True)
    about = {key: value for key, value in vars(args).items() if key not in ("out", "model")}
    result = {"about": about, "environment": environment(), "rows": rows, "milliseconds": parts(plain, prompts[0])}
    args.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def open_system(pair: Any, given: dict[str, Any]) -> Speculator:
    """Return a speculator; `again` discards the rows that drafts leave for the target's pass."""
    options = {name: value for name, value in given.items() if name != "again"}
    if given["method"] == "kangaroo":
        options["head"] = next(folder for folder in bundled_heads() if folder.name == "exit")
    speculator = Speculator.from_transformers(pair.model, pair.tokenizer, **options)
    if given.get("again"):
        drafter: Any = speculator.drafter
        propose = drafter.propose

        def propose_alone(sessions: Sequence[Session], budgets: Sequence[Budget]) -> list[DraftTree]:
            drafts: list[DraftTree] = propose(sessions, budgets)
            for session in sessions:
                assert isinstance(session, HeadSession)
                session.text.known_state.drop()
            return drafts

        drafter.propose = propose_alone
    return speculator


def compare(
    plain: Speculator, other: Speculator, prompts: Sequence[Int32], tokens: int, temperature: float
) -> dict[str, Any]:
    """Return speed-up by CPU time, tokens per round and identity; the first prompt is warm-up."""
    ratios, seconds, rounds, made, same = list[float](), [0.0, 0.0], 0, 0, 0
    for place, prompt in enumerate(prompts):
        results: dict[bool, Any] = {}
        times: dict[bool, float] = {}
        for drafting in (place % 2 == 0, place % 2 == 1):
            speculator = other if drafting else plain
            began = time.process_time()
            results[drafting] = speculator.generate(
                prompt.tolist(), max_new_tokens=tokens, temperature=temperature, seed=place
            )
            times[drafting] = time.process_time() - began
        if not place:
            continue
        same += results[True].ids == results[False].ids
        each = [times[kind] / len(results[kind].ids) for kind in (False, True)]
        ratios.append(each[0] / each[1])
        seconds = [total + own for total, own in zip(seconds, each, strict=True)]
        rounds += results[True].stats.rounds
        made += len(results[True].ids) - 1
    return {
        "mat": made / rounds,
        "speedup": seconds[0] / seconds[1],
        "speedup_quartiles": [float(each) for each in np.quantile(ratios, [0.25, 0.5, 0.75])],
        "identical": same,
        "requests": len(ratios),
    }


def parts(plain: Speculator, prompt: Int32) -> dict[str, float]:
    """Return the median CPU milliseconds of full, partial and continued passes."""
    cache: Any = plain.engine.open(torch.from_numpy(prompt.astype(np.int64))[None])
    cache.prefill()
    tokens, parents = np.arange(10, 10 + NEW_ROWS, dtype=np.int32), np.arange(-1, NEW_ROWS - 1, dtype=np.int32)

    def spent(prepare: Callable[[], object], measured: Callable[[], object]) -> float:
        found = list[float]()
        for _ in range(200):
            prepare()
            began = time.process_time()
            measured()
            found.append(time.process_time() - began)
            cache.rollback()
        return median(found) * 1e3

    return {
        "pass over 1 row": spent(lambda: None, lambda: cache.forward(tokens[:1], parents[:1])),
        f"pass over {NEW_ROWS} rows": spent(lambda: None, lambda: cache.forward(tokens, parents)),
        f"first 2 layers, {NEW_ROWS} rows": spent(lambda: None, lambda: cache.read_exit(tokens, parents, 2)),
        f"pass over {NEW_ROWS} rows that goes on": spent(
            lambda: cache.read_exit(tokens, parents, 2), lambda: cache.forward(tokens, parents)
        ),
    }


if __name__ == "__main__":
    main()
