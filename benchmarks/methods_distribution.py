"""Test that drafts preserve the target's distribution: chi-square tests on the bundled model.

A short prompt is continued by a few tokens many times, with a temperature and top-k that keep the number of possible
texts small enough to compute the exact probability of each from the target's own logits. The round, drafters,
acceptance rules and samplers are the library's; passes of both models are computed once per text (`memo_engine.py`).
Each method runs with its own acceptance rule, or with those of `--rules` that it supports. Methods with a head use the
bundled one; `NAME:TREE` selects the shape of their drafts. Results are added to the file after each method.

    python benchmarks/methods_distribution.py -o benchmarks/results/methods-distribution.json
    python benchmarks/methods_distribution.py -o benchmarks/results/methods-distribution.json --rules \
        speculative-sampling --methods eagle,eagle3:chain,eagle3,medusa:chain,medusa:static,dflash,mix-head
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper

from memo_engine import MemoEngine
from speculant.api.heads import own_head
from speculant.core.drafter import SessionRequest
from speculant.core.sampler import Sampling
from speculant.core.stats import Stats
from speculant.decoding.prefill import prefill
from speculant.decoding.sequence import Sequence
from speculant.decoding.step import DecodingComponents, step
from speculant.engines.hf.sampling.sampler import SamplingPlan, make_sampler
from speculant.registry import METHODS, BuildContext, build_drafter, build_verifier
from speculant.sizing.fixed import FixedSizing
from targets import load_pair

PROMPT = "Once upon a time, there was a"
ENDING = 2
SETTINGS = "samples", "tokens", "temperature", "top_k", "nodes"
MIN_EXPECTED = 5.0  # texts with a lower expected count share a cell


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True, help="results file, which is extended")
    parser.add_argument("--draft-model", metavar="DIR", help="default: the bundled one")
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--tokens", type=int, default=4, help="new tokens; the first comes from the prompt's pass")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-k", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--methods", metavar="NAME[:TREE],...", help="default: all that sample with a draft model")
    parser.add_argument("--rules", metavar="NAME,...", help="acceptance rules; default: the method's own")
    args = parser.parse_args()
    own = [name for name, each in METHODS.items() if each.samples and each.exactness == "lossless"]
    names = args.methods.split(",") if args.methods else [name for name in own if METHODS[name].takes_draft_model]
    pair = load_pair("bundled", dtype="float32", draft_model=args.draft_model)
    ids = pair.tokenizer(PROMPT)["input_ids"]
    distribution = exact_distribution(pair.model, ids, args)
    engines = MemoEngine(pair.model), MemoEngine(pair.draft_model)
    results: dict[str, Any] = json.loads(args.out.read_text("utf-8")) if args.out.exists() else {}
    for name in names:
        method = METHODS[name.partition(":")[0]]
        for rule in args.rules.split(",") if args.rules else [method.verifier]:
            if rule not in method.verifiers or f"{name} {rule}" in results:
                continue
            results[f"{name} {rule}"] = found = tested(name, rule, engines, ids, distribution, args)
            print(name, rule, found, flush=True)
            args.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


def tested(
    name: str,
    rule: str,
    engines: tuple[MemoEngine, MemoEngine],
    ids: list[int],
    distribution: dict[tuple[int, ...], float],
    args: Any,
) -> dict[str, Any]:
    """Return the test statistics of a method; its name may include a tree, as in `eagle3:chain`."""
    target, draft = engines
    method, tree = METHODS[name.partition(":")[0]], name.partition(":")[2]
    verifier = build_verifier(method.name, rule)
    opened: Any = draft.open if method.takes_draft_model else None
    drafter = build_drafter(
        method,
        BuildContext(
            vocabulary=target.capabilities.vocabulary,
            open_cache=opened,
            head=own_head(method, target.model) if method.heads else None,
            settings={"tree": tree} if tree else None,
            sampled=verifier.sampled,
        ),
    )
    parts: Any = DecodingComponents(engine=target, drafter=drafter, verifier=verifier, sizing=FixedSizing(args.nodes))
    counts, stats, prompt = Counter[tuple[int, ...]](), Stats(method=name), np.array(ids, np.int32)
    for seed in range(args.samples):
        plan = SamplingPlan(
            processors=[TemperatureLogitsWarper(args.temperature), TopKLogitsWarper(args.top_k)],
            ends=frozenset({ENDING}),
            max_length=len(ids) + args.tokens,
            sample=True,
            generator=torch.Generator().manual_seed(seed),
        )
        sampler = make_sampler(torch.tensor([ids]), plan)
        start = SessionRequest(
            prompt=prompt,
            sampling=Sampling(temperature=args.temperature, top_k=args.top_k),
            seed=np.random.SeedSequence([seed, 1]),
        )
        cache: Any = target.open(prompt)
        sequence = Sequence(cache, sampler, start, stats)
        prefill([sequence], parts, maximum=[None])
        while sequence.active:
            step([sequence], parts)
        if sequence.error is not None:
            raise sequence.error
        sequence.close()
        counts[tuple(sampler.tokens)] += 1
    found = {
        "impossible texts": len(set(counts) - set(distribution)),
        "drafted": stats.drafted,
        "accepted": stats.accepted,
    }
    return chi_square(counts, distribution, args.samples) | found | {key: getattr(args, key) for key in SETTINGS}


def chi_square(
    counts: Counter[tuple[int, ...]], distribution: dict[tuple[int, ...], float], samples: int
) -> dict[str, Any]:
    """Return the chi-square statistic and its p-value, over cells with a sufficient expected count."""
    observed, expected = [0.0], [0.0]
    for text, probability in sorted(distribution.items(), key=lambda item: -item[1]):
        if expected[-1] >= MIN_EXPECTED:
            observed.append(0.0)
            expected.append(0.0)
        observed[-1] += counts[text]
        expected[-1] += probability * samples
    if expected[-1] < MIN_EXPECTED and len(expected) > 1:
        observed[-2:], expected[-2:] = [sum(observed[-2:])], [sum(expected[-2:])]
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in zip(observed, expected, strict=True))
    halves = torch.tensor([(len(expected) - 1) / 2, statistic / 2], dtype=torch.float64)
    p = float(torch.special.gammaincc(halves[0], halves[1]))
    return {"cells": len(expected), "chi_square": round(statistic, 2), "p": round(p, 4)}


def exact_distribution(model: Any, ids: list[int], args: Any) -> dict[tuple[int, ...], float]:
    """Return the probability of every possible text."""
    distribution, going = dict[tuple[int, ...], float](), dict[tuple[int, ...], float]({(): 1.0})
    for _ in range(args.tokens):
        with torch.no_grad():
            logits = model(torch.tensor([[*ids, *text] for text in going])).logits[:, -1].double() / args.temperature
        longer = dict[tuple[int, ...], float]()
        for (text, probability), row in zip(going.items(), logits, strict=True):
            best = row.topk(args.top_k)
            for token, chance in zip(best.indices.tolist(), best.values.softmax(-1).tolist(), strict=True):
                whole = token == ENDING or len(text) + 1 == args.tokens
                (distribution if whole else longer)[(*text, token)] = probability * chance
        going = longer
    return distribution


if __name__ == "__main__":
    main()
