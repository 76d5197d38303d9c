"""Whether methods that sample their drafts leave the target's distribution as it is: chi-square tests on the bundled pair.

A short prompt is continued by a few tokens many times, at a temperature and with top-k, so that there are few enough
texts to compute the exact probability of each from the target's own logits. Each method runs with its own acceptance
rule and with the others that it may use. Results are added to the file as each is finished.

    python benchmarks/methods_distribution.py -o benchmarks/results/methods-distribution.json
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from speculant.api.draft_caches import open_draft_caches
from speculant.api.speculator import Speculator
from speculant.registry import METHODS, VERIFIERS
from targets import load_pair

PROMPT = "Once upon a time, there was a"
LEAST_EXPECTED = 5.0  # texts that are expected less often share a cell
CHUNK = 2000  # requests that are prepared at a time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True, help="results, which are added to")
    parser.add_argument("--draft-model", metavar="DIR", help="default: the bundled one")
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--tokens", type=int, default=4, help="new tokens; the first belongs to the prompt's pass")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-k", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--methods", metavar="NAME,...", help="default: all that sample")
    args = parser.parse_args()
    sampling = [name for name, method in METHODS.items() if method.samples and method.exactness == "lossless"]
    names = args.methods.split(",") if args.methods else sampling
    pair = load_pair("bundled", dtype="float32", draft_model=args.draft_model)
    ids = pair.tokenizer(PROMPT)["input_ids"]
    law = exact_law(pair.model, ids, args)
    results: dict[str, Any] = json.loads(args.out.read_text("utf-8")) if args.out.exists() else {}
    caches = open_draft_caches(pair.draft_model, pair.model.config.vocab_size)
    fast = Speculator.from_transformers(pair.model, method="none").fast
    for name in names:
        rules = [rule for rule in METHODS[name].verifiers if not VERIFIERS[rule].lossy and rule != "greedy"]
        for rule in rules:
            if f"{name} {rule}" in results:
                continue
            speculator = Speculator.from_transformers(
                pair.model,
                method=name,
                verifier=rule,
                nodes=6,
                draft_model=caches if METHODS[name].takes_draft_model else None,
                fast=fast,
            )
            results[f"{name} {rule}"] = tested(speculator, ids, law, args)
            print(name, rule, results[f"{name} {rule}"], flush=True)
            args.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


def tested(speculator: Speculator, ids: list[int], law: dict[tuple[int, ...], float], args: Any) -> dict[str, Any]:
    """Return the statistics of a method's texts."""
    counts, accepted, drafted = Counter[tuple[int, ...]](), 0, 0
    for begin in range(0, args.samples, CHUNK):
        count = min(CHUNK, args.samples - begin)
        options = {"max_new_tokens": args.tokens, "temperature": args.temperature, "top_k": args.top_k}
        for result in speculator.generate_batch([ids] * count, size=args.batch, seed=1 + begin, **options):
            counts[tuple(result.ids)] += 1
            accepted += result.stats.accepted
            drafted += result.stats.drafted
    if impossible := set(counts) - set(law):
        return {"p": 0.0, "impossible": len(impossible)}
    observed, expected = [0.0], [0.0]
    for text, probability in sorted(law.items(), key=lambda item: -item[1]):
        if expected[-1] >= LEAST_EXPECTED:
            observed.append(0.0)
            expected.append(0.0)
        observed[-1] += counts[text]
        expected[-1] += probability * args.samples
    if expected[-1] < LEAST_EXPECTED and len(expected) > 1:
        observed[-2:], expected[-2:] = [sum(observed[-2:])], [sum(expected[-2:])]
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in zip(observed, expected, strict=True))
    halves = torch.tensor([(len(expected) - 1) / 2, statistic / 2], dtype=torch.float64)
    return {
        "samples": args.samples,
        "tokens": args.tokens,
        "temperature": args.temperature,
        "top_k": args.top_k,
        "cells": len(expected),
        "chi_square": round(statistic, 2),
        "p": round(float(torch.special.gammaincc(halves[0], halves[1])), 4),
        "drafted": drafted,
        "accepted": accepted,
    }


def exact_law(model: Any, ids: list[int], args: Any) -> dict[tuple[int, ...], float]:
    """Return the probability of every text."""
    law, open_ = dict[tuple[int, ...], float](), {(): 1.0}
    ending = model.generation_config.eos_token_id
    for _ in range(args.tokens):
        with torch.no_grad():
            logits = model(torch.tensor([[*ids, *text] for text in open_])).logits[:, -1].double() / args.temperature
        longer = dict[tuple[int, ...], float]()
        for (text, probability), row in zip(open_.items(), logits, strict=True):
            best = row.topk(args.top_k)
            for token, chance in zip(best.indices.tolist(), best.values.softmax(-1).tolist(), strict=True):
                ended = token == ending or len(text) + 1 == args.tokens
                (law if ended else longer)[*text, token] = probability * chance
        open_ = longer
    return law


if __name__ == "__main__":
    main()
