"""Measure the cost and gain of drafting with part of the target's cache, by the length of the text.

`cost` times passes of a model with random weights in the shape of a config: over one row and over a draft on the whole
cache, the pass that selects cache rows, and a draft's passes on the selected rows. No prompts are read: keys and values
are random numbers of unit variance, since the time of a pass does not depend on them. Acceptance is not measured; the
ratio to plain decoding is given as a function of it, for the best draft length among 1, 2, 4 and 8:

    E / ((draft + verification) / plain + (choosing - first draft pass) / plain * E / refresh)

with E = (1 - a^(k+1)) / (1 - a) tokens per round, acceptance rate a per token, and k tokens per draft.

`decode` decodes held-out text greedily with the model of `sparse_cache_model.py`, alternating with plain decoding. Each
prompt is read once, and every system starts from a copy of its cache; prefill is excluded.

    python benchmarks/sparse_cache.py cost --config $SPECULANT_DATA/models/shape-0.5b -o benchmarks/results/FILE.json
    python benchmarks/sparse_cache.py decode --model MODEL -o benchmarks/results/FILE.json
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, LlamaForCausalLM

from speculant import Speculator
from speculant.cli.env import environment
from speculant.core.sparse_cache import SparseCache
from speculant.core.tree import DraftTree
from speculant.drafters.sparse.drafter import SparseCacheSettings
from speculant.engines.hf.cpu.accelerate import prepare_model
from speculant.engines.hf.engine import HFEngine

LENGTHS = (1, 2, 4, 8)  # tokens of drafts whose verification is timed
TIMED = 4  # tokens of the timed draft; every pass after the first is assumed to cost the same
ACCEPTANCES = (0.7, 0.8, 0.85, 0.9, 0.95, 1.0)
REFRESH = SparseCacheSettings().refresh


def random_cache(config: Any, tokens: int, dtype: torch.dtype) -> DynamicCache:
    """Return a cache of `tokens` tokens with random keys and values."""
    cache, heads = DynamicCache(), config.num_key_value_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for layer in range(config.num_hidden_layers):
        cache.update(*(torch.randn(1, heads, tokens, width, dtype=dtype) for _ in range(2)), layer)
    return cache


def row_budget(budget: int, *, retrieves: bool = True) -> dict[str, Any]:
    """Return settings for a budget: a quarter of it for recent rows, or everything except the sinks."""
    return {"budget": budget, "recent": budget // 4 if retrieves else budget - SparseCacheSettings().sinks}


def chain(nodes: int) -> DraftTree:
    """Return a draft that is a chain."""
    return DraftTree(np.ones(nodes, np.int32), np.arange(-1, nodes - 1, dtype=np.int32), np.ones(nodes, np.float32))


def draft_passes(sparse: SparseCache, nodes: int) -> None:
    """Run the passes of a draft of `nodes` tokens."""
    sparse.begin(1)
    for row in range(nodes - 1):
        sparse.forward(np.ones(1, np.int32), np.array([row], np.int32))


def clock_name(args: argparse.Namespace) -> str:
    """Return the name of the clock that measures times."""
    return "cpu" if args.cpu_time else "wall"


def cost(args: argparse.Namespace) -> Iterator[tuple[dict[str, Any], int, dict[str, Any]]]:
    """Yield the settings and the pass costs for each length of the text."""
    config, dtype = AutoConfig.from_pretrained(args.config), getattr(torch, args.dtype)
    config.max_position_embeddings = max(args.contexts) + 64
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    engine = HFEngine(model, acceleration=prepare_model(model, True))
    parameters = sum(p.numel() for p in model.parameters())
    about = {"model": args.config.name, "parameters": parameters, "dtype": args.dtype, "rounds": args.rounds}
    about |= {"machine": environment(model), "refresh": REFRESH, "clock": clock_name(args)}
    for tokens in args.contexts:
        yield about, tokens, context_cost(engine, config, tokens, args)


def context_cost(engine: HFEngine, config: Any, tokens: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the milliseconds of passes after `tokens` cached tokens, and the resulting ratios."""
    cache = engine.open(
        torch.ones(1, tokens, dtype=torch.long), cache=random_cache(config, tokens - 1, engine.model.dtype)
    )
    cache.prefill()

    def verify(nodes: int) -> None:
        engine.forward([(cache, 1, chain(nodes))])
        cache.rollback()

    kinds: dict[str, Callable[[], object]] = {"plain": partial(verify, 0)}
    kinds |= {f"verify {nodes}": partial(verify, nodes) for nodes in LENGTHS}
    for budget in args.budgets:
        sparse = cache.open_sparse(SparseCacheSettings(**row_budget(budget)).row_budget())
        kinds[f"retrieve {budget}"] = partial(sparse.retrieve, 1)
        kinds[f"begin {budget}"] = partial(draft_passes, sparse, 1)
        kinds[f"draft {budget}"] = partial(draft_passes, sparse, TIMED)
    taken: dict[str, list[float]] = defaultdict(list)
    for turn in range(args.rounds + 1):
        for kind, run in kinds.items():
            began = args.clock()
            run()
            if turn:  # the first turn allocates
                taken[kind].append((args.clock() - began) * 1e3)
    found = {kind: round(median(each), 3) for kind, each in taken.items()}
    print(tokens, found, flush=True)
    ratios = {str(budget): budget_ratios(found, budget) for budget in args.budgets}
    print(tokens, ratios, flush=True)
    return {"milliseconds": found, "ratios": ratios}


def budget_ratios(found: dict[str, float], budget: int) -> dict[str, Any]:
    """Return the ratio to plain decoding by acceptance rate, and the acceptance rate at which it is 1."""
    ratios = {str(each): ratio(found, budget, each) for each in ACCEPTANCES}
    even = next((a for a in np.arange(0.01, 1.001, 0.01).tolist() if ratio(found, budget, a)["ratio"] >= 1), None)
    return {"by_acceptance": ratios, "even_at": None if even is None else round(even, 2)}


def ratio(found: dict[str, float], budget: int, acceptance: float) -> dict[str, float]:
    """Return the best ratio to plain decoding (equation above) and the length of its drafts."""
    choosing = max(0.0, found[f"retrieve {budget}"] - found[f"begin {budget}"])
    best = {"ratio": 0.0, "length": 0.0}
    for nodes in LENGTHS:
        expected = sum(acceptance**level for level in range(nodes + 1))
        further = (found[f"draft {budget}"] - found[f"begin {budget}"]) / (TIMED - 1)
        drafting = found[f"begin {budget}"] + (nodes - 1) * further
        spent = drafting + found[f"verify {nodes}"] + choosing * expected / REFRESH
        if (value := round(expected * found["plain"] / spent, 3)) > best["ratio"]:
            best = {"ratio": value, "length": nodes}
    return best


def systems(args: argparse.Namespace) -> dict[str, tuple[dict[str, Any], Any]]:
    """Return the settings and nodes of the systems to compare with plain decoding."""
    any_length = {"min_context": 0}
    found: dict[str, tuple[dict[str, Any], Any]] = {}
    for budget in args.budgets:
        found[f"{budget} rows, retrieved"] = row_budget(budget) | any_length, args.nodes
        found[f"{budget} rows, sinks and recent"] = row_budget(budget, retrieves=False) | any_length, args.nodes
    found[f"{args.budgets[-1]} rows, automatic"] = row_budget(args.budgets[-1]) | any_length, "auto"
    return found


def decode(args: argparse.Namespace) -> Iterator[tuple[dict[str, Any], int, dict[str, Any]]]:
    """Yield the settings and the decoding results after held-out text, for each length of the text."""
    model = LlamaForCausalLM.from_pretrained(args.model).eval()
    model.generation_config.pad_token_id = 0
    plain = Speculator.from_transformers(model, method="none")
    found = {
        name: Speculator.from_transformers(
            model, method="sparse-cache", nodes=nodes, settings=settings, fast=plain.fast
        )
        for name, (settings, nodes) in systems(args).items()
    }
    about = {"model": "sparse_cache_model.py", "parameters": sum(p.numel() for p in model.parameters())}
    about |= {"machine": environment(model), "new_tokens": args.new, "nodes": args.nodes, "clock": clock_name(args)}
    text = np.load(args.model / "held-out.npy").astype(np.int64)
    for tokens in args.contexts:
        starts = np.linspace(0, len(text) - tokens - 1, args.prompts).astype(int)
        prompts = [torch.from_numpy(text[start : start + tokens]) for start in starts]
        yield about, tokens, context_gain(plain, found, prompts, args.new, args.clock)


def context_gain(
    plain: Speculator, others: dict[str, Speculator], prompts: list[torch.Tensor], new: int, clock: Callable[[], float]
) -> dict[str, Any]:
    """Return totals over prompts: tokens per pass, share of drafting, and the median ratio to plain decoding."""
    totals: dict[str, dict[str, Any]] = {name: defaultdict(float) for name in others}
    ratios: dict[str, list[float]] = defaultdict(list)
    for prompt in prompts:
        first = plain.generate(prompt, max_new_tokens=1, temperature=0)
        text = torch.cat([prompt, torch.tensor(first.ids)])

        def timed(speculator: Speculator, text: torch.Tensor = text, cache: Any = first.cache) -> tuple[Any, float]:
            stream = speculator.stream(text, max_new_tokens=new, temperature=0, cache=copy.deepcopy(cache))
            pieces = iter(stream)
            next(pieces)  # the first token, from prefill
            began = clock()
            for _ in pieces:
                pass
            return stream.result, clock() - began

        for speculator in others.values():  # warm-up: sizes are learned and code is loaded
            timed(speculator)
        for name, speculator in others.items():
            expected, plainly = timed(plain)
            result, seconds = timed(speculator)
            ratios[name].append(plainly / seconds)
            total = totals[name]
            total["drafted"] += result.stats.drafted
            total["accepted"] += result.stats.accepted
            total["rounds"] += result.stats.rounds
            total["draft_seconds"] += result.stats.draft_seconds
            total["target_seconds"] += result.stats.target_seconds
            total["seconds"] += seconds
            total["plain_seconds"] += plainly
            total["identical"] += result.ids == expected.ids
    for name, total in totals.items():
        total["acceptance"] = total["accepted"] / max(1, total["drafted"])
        total["mat"] = 1 + total["accepted"] / total["rounds"]
        total["drafting"] = total["draft_seconds"] / (total["draft_seconds"] + total["target_seconds"])
        total["ratio"] = median(ratios[name])
        print(len(prompts[0]), name, {key: round(value, 3) for key, value in total.items()}, flush=True)
    return {"prompts": len(prompts), "systems": {name: dict(total) for name, total in totals.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("cost", "decode"))
    parser.add_argument("--config", type=Path, help="a folder with the config.json of a model")
    parser.add_argument("--model", type=Path, help="a folder written by sparse_cache_model.py")
    parser.add_argument("--contexts", type=int, nargs="+", default=[2048, 8192, 32768])
    parser.add_argument("--budgets", type=int, nargs="+", default=[256, 512, 1024])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--new", type=int, default=128, help="new tokens per text")
    parser.add_argument("--nodes", type=int, default=5, help="tokens per draft")
    parser.add_argument("-o", "--out", type=Path, help="results file; contexts already in it are skipped")
    parser.add_argument("--cpu-time", action="store_true", help="count the CPU time of one thread, for a busy machine")
    args = parser.parse_args()
    args.clock = time.thread_time if args.cpu_time else time.perf_counter
    with torch.no_grad():
        for about, tokens, found in (cost if args.part == "cost" else decode)(args):
            if args.out is None:
                continue
            before = json.loads(args.out.read_text(encoding="utf-8"))["contexts"] if args.out.exists() else {}
            record = about | {"contexts": before | {str(tokens): found}}
            args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
