"""Compare automatic draft sizes of draft-model methods with every fixed size, in tokens per second.

Each prompt is decoded with every size, in a changing order, so that all sizes see the same load. With METHOD:SIZE in
place of a size, methods are compared.

    python benchmarks/draft_lengths.py --target inflated -o benchmarks/results/draft-lengths-inflated.json
    python benchmarks/draft_lengths.py --sizes draft-model:auto,sequoia:auto,mix-model:auto,mix:auto -o FILE
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from speculant.api.draft_caches import open_draft_caches
from speculant.api.speculator import Speculator
from speculant.cli.env import environment
from speculant.cli.threads import set_threads
from speculant.registry import METHODS
from targets import TARGETS, load_pair, story_prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--target", choices=TARGETS, default="inflated")
    parser.add_argument("--method", default="draft-model")
    parser.add_argument("--sizes", default="1,2,3,4,5,6,8,10,auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--warm-up", type=int, default=4, help="requests decoded first and not counted")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    args = parser.parse_args()
    pair = load_pair(args.target, dtype=args.dtype, draft_model=None)
    set_threads(pair.model, args.threads)
    caches = open_draft_caches(pair.draft_model, pair.model.config.vocab_size)
    fast = Speculator.from_transformers(pair.model, method="none").fast
    sizes = args.sizes.split(",")
    speculators = {}
    for size in sizes:
        method, _, nodes = size.rpartition(":")
        method = method or args.method
        speculators[size] = Speculator.from_transformers(
            pair.model,
            method=method,
            draft_model=caches if METHODS[method].takes_draft_model else None,
            nodes=nodes if nodes == "auto" else int(nodes),
            fast=fast,
        )
    totals: dict[str, dict[str, Any]] = {size: {"tokens": 0, "seconds": 0.0, "rounds": 0} for size in sizes}
    prompts = story_prompts(pair.tokenizer, count=args.warm_up + args.requests, tokens=24)
    for turn, prompt in enumerate(prompts):
        for place in range(len(sizes)):
            size = sizes[(place + turn) % len(sizes)]
            stats = (
                speculators[size]
                .generate(prompt.tolist(), max_new_tokens=args.tokens, temperature=args.temperature, seed=turn)
                .stats
            )
            if turn >= args.warm_up:
                totals[size]["tokens"] += stats.tokens - 1
                totals[size]["seconds"] += stats.seconds - stats.prefill_seconds
                totals[size]["rounds"] += stats.rounds
    for found in totals.values():
        found |= {"tokens_per_second": found["tokens"] / found["seconds"], "mat": found["tokens"] / found["rounds"]}
    rates = {size: found["tokens_per_second"] for size, found in totals.items()}
    best = max((size for size in sizes if size != "auto"), key=lambda size: rates[size])
    over = {"auto_over_best_fixed": round(rates["auto"] / rates[best], 4)} if "auto" in rates else {}
    result = {
        "conditions": {key: value for key, value in vars(args).items() if key != "out"},
        "environment": environment(pair.model),
        "sizes": totals,
        **over,
        "best": best,
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print({size: round(rate, 2) for size, rate in rates.items()}, over)


if __name__ == "__main__":
    main()
