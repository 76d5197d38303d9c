"""Tokens per pass of heads, of `mix` and of their unions, by nodes: greedy trees and chains, and sampled trees.

    OMP_NUM_THREADS=1 python benchmarks/unions.py -o benchmarks/results/unions.json

Counts tokens, not time: the bundled model with its heads, on held-out stories. Chains are verified by the block rule.
Results are added to the file after each configuration, so an interrupted run continues with the same command.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from speculant.api.heads import open_head
from speculant.api.loading import bundled_heads
from speculant.api.speculator import Speculator
from targets import load_pair, story_prompts

WIDE = {"tree": "dynamic", "depth": 9, "top_k": 10}  # for a head alone with more than 16 nodes
NARROW = {"tree": "dynamic"}
CHAIN = {"tree": "chain"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True, help="results file, which is extended")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=48, help="new tokens per request")
    parser.add_argument("--nodes", default="8,16,64", help="tree sizes")
    args = parser.parse_args()
    pair = load_pair("bundled", dtype="float32", draft_model=None)
    prompts = story_prompts(pair.tokenizer, count=args.requests, tokens=32)
    found: dict[str, Any] = json.loads(args.out.read_text("utf-8")) if args.out.exists() else {"mat": {}}
    found["conditions"] = {
        "model": "bundled",
        "requests": args.requests,
        "tokens": args.tokens,
        "memory": "empty at first",
    }
    drafts = [("tree", nodes, 0.0) for nodes in map(int, args.nodes.split(","))]
    drafts += [("chain", 4, 0.0), ("chain", 8, 0.0), ("tree", 16, 1.0)]
    for base in ("none", "bundled"):
        for shape, nodes, temperature in drafts:
            for name, kind in systems():
                key = f"{name}, {shape} of {nodes}, temperature {temperature:g}, base {base}"
                if key in found["mat"]:
                    continue
                options = options_of(kind, shape, nodes)
                options |= {"verifier": "block"} if shape == "chain" else {}
                options |= {"base": None if base == "none" else base} if name.startswith("mix") else {}
                found["mat"][key] = round(tokens_per_pass(pair, prompts, options, temperature, args.tokens), 3)
                args.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
                print(key, found["mat"][key], flush=True)


def systems() -> list[tuple[str, Path | None]]:
    """Return the systems to compare: `mix`, then each head alone and united with it."""
    found: list[tuple[str, Path | None]] = [("mix", None)]
    for head in bundled_heads():
        found += [(head.name, head), (f"mix and {head.name}", head.parent / f"+{head.name}")]
    return found


def options_of(kind: Path | None, shape: str, nodes: int) -> dict[str, Any]:
    """Return the keyword arguments of a speculator."""
    if kind is None:
        return {"method": "mix", "nodes": nodes}
    if kind.name.startswith("+"):
        return {"method": "mix-head", "nodes": nodes, "head": str(kind.with_name(kind.name[1:]))}
    settings = CHAIN if shape == "chain" else WIDE if nodes > 16 else NARROW
    return {"method": None, "nodes": nodes, "head": str(kind), "settings": settings}


def tokens_per_pass(
    pair: Any, prompts: Sequence[Any], options: dict[str, Any], temperature: float, tokens: int
) -> float:
    """Return the tokens per pass over all prompts, decoded one after the other."""
    head = options.get("head")
    opened = None if head is None else open_head(head, pair.model)
    options = options | {"head": opened, "method": options["method"] or (opened.method if opened else "mix")}
    speculator = Speculator.from_transformers(pair.model, pair.tokenizer, **options)
    committed = rounds = 0
    for number, prompt in enumerate(prompts):
        ids = [int(token) for token in prompt]
        seed = number if temperature else None
        result = speculator.generate(ids, max_new_tokens=tokens, temperature=temperature, seed=seed)
        committed, rounds = committed + len(result.ids) - 1, rounds + result.stats.rounds
    speculator.close()
    return committed / rounds


if __name__ == "__main__":
    main()
