"""Find which parts of the story model drafts can skip, whole layers or attention and MLP separately, and measure them.

Draft & Verify (Zhang et al. 2024, arXiv 2309.08168) and SWIFT (Xia et al. 2025, arXiv 2410.06916) skip sublayers. With
the bundled model's six layers, all sets can be tried: 62 of layers, 4,094 of sublayers. A set's acceptance is the share
of greedy tokens that the remaining model predicts, its cost the share of the weights that it reads, and its speed that
of the best length (`speculant.api.layer_tuning`). Sets are chosen on six texts and their expected speed is that on six
others; also at the cost of a copy whose MLPs are widened fourfold without changing its output. Then `layer-skip` with
the bundled model's best set of each kind, and `swift` searching for sets of each kind, alternate with plain decoding on
further prompts, in CPU time.

    OMP_NUM_THREADS=1 python benchmarks/sublayers.py -o benchmarks/results/sublayers.json

`--only sets` and `--only speeds` do one of the two; the second reads the sets from the output of the first.
"""

from __future__ import annotations

import argparse
import json
from itertools import chain, combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from exits import compare
from speculant import Speculator
from speculant.api.layer_tuning import LONGEST, expected_speed, sublayer_shares
from speculant.api.result import Stream
from speculant.bench.systems.inflate import inflate
from speculant.cli.env import environment
from speculant.core.engine import TargetCache
from speculant.core.sublayers import Part, Sublayers
from speculant.drafters.layers.subsets import format_skipped, without
from targets import load_pair, story_prompts

PROMPT, TOKENS, TEXTS, SHOWN, WIDER = 32, 64, 6, 4, 4
KINDS = ("layers", "sublayers")
Shares = dict[tuple[Part, int], float]  # of the weights that a pass reads
Text = tuple[TargetCache, list[int]]  # a cache without the last token, and the generated tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=10)
    parser.add_argument("--only", choices=["sets", "speeds"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    pair = load_pair("bundled", dtype="float32", draft_model=None)
    models = {"bundled": pair.model, "wider MLPs": inflate(pair.model, mlp=WIDER * pair.model.config.intermediate_size)}
    prompts = story_prompts(pair.tokenizer, count=2 * TEXTS + args.requests + 1, tokens=PROMPT)
    if args.only == "speeds":
        found = json.loads(args.out.read_text("utf-8"))
    else:
        plain = Speculator.from_transformers(pair.model, pair.tokenizer, method="none")
        texts = [write_text(plain, prompt.tolist()) for prompt in prompts[: 2 * TEXTS]]
        shares = {name: sublayer_shares(model) for name, model in models.items()}
        found = {"texts": TEXTS, "tokens": TOKENS, "models": find_sets(plain, texts, shares)}
    found["environment"] = environment(pair.model)
    args.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    if args.only == "sets":
        return
    found["requests"] = args.requests
    plain = Speculator.from_transformers(pair.model, pair.tokenizer, method="none")
    rows = found["models"]["bundled"]["speeds"] = list[dict[str, Any]]()
    for system, options in systems(found["models"]["bundled"]).items():
        for temperature in (0.0, 1.0) if "nodes" in options and options["method"] == "layer-skip" else (0.0,):
            other = Speculator.from_transformers(pair.model, pair.tokenizer, **options)
            row = compare(plain, other, prompts[2 * TEXTS :], TOKENS, temperature)
            rows.append({"system": system, "temperature": temperature, **row})
            print(rows[-1], flush=True)
    args.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def write_text(plain: Speculator, prompt: list[int]) -> Text:
    """Decode a text greedily; return its cache and its tokens."""
    generation = plain.prepare(prompt, max_new_tokens=TOKENS, temperature=0)
    for _ in Stream(generation, plain.parts()):
        pass
    return generation.sequence.cache, list(generation.sequence.sampler.tokens)


def find_sets(plain: Speculator, texts: list[Text], shares: dict[str, Shares]) -> dict[str, Any]:
    """Try all sets; return the best ones of layers and of sublayers for each model's shares."""
    count = plain.model.config.num_hidden_layers
    some = list(chain.from_iterable(combinations(range(count), size) for size in range(count + 1)))
    sets = [Sublayers(attention, mlp) for attention in some for mlp in some][1:-1]  # not none, not all
    chosen_on = {each: acceptance(texts[:TEXTS], each, count) for each in sets}
    found: dict[str, Any] = {name: {} for name in shares}
    for name, kind in product(shares, KINDS):
        own = {
            each: figures(chosen_on[each], each, shares[name]) for each in sets if each.are_whole or kind != "layers"
        }
        best = sorted(own, key=lambda each: -own[each]["speed"])[:SHOWN]
        rows = [
            {
                "skipped": format_skipped(each),
                "chosen_on": own[each],
                "held_out": figures(acceptance(texts[TEXTS:], each, count), each, shares[name]),
            }
            for each in best
        ]
        found[name][kind] = {"sets": len(own), "best": rows}
        print(name, kind, rows[0], flush=True)
    return found


def acceptance(texts: list[Text], skipped: Sublayers, count: int) -> float:
    """Return the share of greedy tokens that the rest of the model predicts."""
    run, matched, drafted = without(skipped, count), 0, 0
    for cache, tokens in texts:
        predicted = cache.reread(np.array(tokens[:-1], np.int32), run).logits.argmax(-1).tolist()
        matched += sum(a == b for a, b in zip(predicted, tokens[1:], strict=True))
        drafted += len(predicted)
    return matched / drafted


def figures(accepted: float, skipped: Sublayers, shares: Shares) -> dict[str, float]:
    """Return a set's acceptance, cost, and speed relative to plain decoding at the best length."""
    cost = 1 - sum(shares["attention", i] for i in skipped.attention) - sum(shares["mlp", i] for i in skipped.mlp)
    speed, length = max((expected_speed(accepted, cost, n), -n) for n in range(1, LONGEST + 1))
    return {"speed": round(speed, 3), "length": -length, "acceptance": round(accepted, 3), "cost": round(cost, 3)}


def systems(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the options of the speculators to compare with plain decoding."""
    named: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        best = found[kind]["best"][0]
        fixed = {"skipped": best["skipped"], "threshold": 0.0, "adaptive": False}
        length = best["chosen_on"]["length"]
        named[f"layer-skip, {kind}, {length} tokens"] = {"method": "layer-skip", "nodes": length, "settings": fixed}
        settings = {"skipped": best["skipped"]}
        named[f"layer-skip, {kind}, automatic"] = {"method": "layer-skip", "settings": settings}
    for kind in KINDS:
        named[f"swift, {kind}, 4 tokens"] = {
            "method": "swift",
            "nodes": 4,
            "settings": {"sublayers": kind == "sublayers"},
        }
    return named


if __name__ == "__main__":
    main()
