"""Compare the bundled draft model's tokens per pass with what theory predicts, with sampled tokens.

- chain: tokens per pass for a fixed length g, compared with 1 + a_1 + a_1 a_2 + ..., where a_d is the measured
  acceptance rate of the d-th token if those before it were accepted; and with (1 - a^(g+1)) / (1 - a), which assumes
  the same rate at all positions (Leviathan et al. 2023, equation 1).
- sequoia: tokens per pass of its tree, compared with the prediction of its dynamic programme from measured acceptance.

Prediction and measurement use different rounds: acceptance is measured on the first half of the prompts.

    python benchmarks/draft_theory.py -o benchmarks/results/draft-theory.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from speculant.api.draft_caches import open_draft_caches
from speculant.api.speculator import Speculator
from speculant.core.stats import Stats
from speculant.core.tree import Int32
from speculant.drafters.models.draft_model import SequoiaDrafter
from speculant.drafters.models.sequoia import BestTrees
from targets import Pair, load_pair, story_prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=80)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--lengths", default="2,4,6")
    parser.add_argument("--nodes", type=int, default=16, help="nodes of Sequoia's tree")
    args = parser.parse_args()
    pair = load_pair("bundled", dtype="float32", draft_model=None)
    prompts = story_prompts(pair.tokenizer, count=args.requests, tokens=16)
    results = {
        "requests": args.requests,
        "tokens": args.tokens,
        "temperature": 1.0,
        "chains": [chain(pair, prompts, args.tokens, int(length)) for length in args.lengths.split(",")],
        "sequoia": sequoia(pair, prompts, args.tokens, args.nodes),
    }
    args.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


def chain(pair: Pair, prompts: Sequence[Int32], tokens: int, length: int) -> dict[str, Any]:
    """Return measured and predicted tokens per pass for chains of one length."""
    speculator = make(pair, "draft-model", length)
    first, second = (decoded(speculator, half, tokens, seed) for seed, half in enumerate(halves(prompts)))
    offered = np.array(summed(first, "offered_by_depth", length))
    accepted = np.array(summed(first, "accepted_by_depth", length))
    rates = accepted / offered
    mean = float(accepted.sum() / offered.sum())
    predicted = 1 + float(np.cumprod(rates).sum())
    even = (1 - mean ** (length + 1)) / (1 - mean)
    found = compared(efficiency(second), predicted)
    return {"length": length, "acceptance": rates.round(4).tolist(), **found, "predicted_if_alike": round(even, 4)}


def sequoia(pair: Pair, prompts: Sequence[Int32], tokens: int, nodes: int) -> dict[str, Any]:
    """Return measured and predicted tokens per pass for Sequoia's tree."""
    speculator = make(pair, "sequoia", nodes)
    first, second = halves(prompts)
    decoded(speculator, first, tokens, 0)
    drafter = speculator.drafter
    assert isinstance(drafter, SequoiaDrafter)
    trees = BestTrees(
        drafter.trees.acceptance.probabilities(),
        nodes=nodes,
        levels=drafter.trees.levels,
        siblings=drafter.trees.siblings,
    )
    stats = decoded(speculator, second, tokens, 1)
    return {"nodes": nodes, **compared(efficiency(stats), 1 + float(trees.gains[-1, -1]))}


def make(pair: Pair, method: str, nodes: int) -> Speculator:
    """Return a speculator with a fixed draft size."""
    caches = open_draft_caches(pair.draft_model, pair.model.config.vocab_size)
    return Speculator.from_transformers(pair.model, method=method, draft_model=caches, nodes=nodes)


def decoded(speculator: Speculator, prompts: Sequence[Int32], tokens: int, seed: int) -> list[Stats]:
    """Decode all prompts and return their statistics."""
    return [
        speculator.generate(prompt.tolist(), max_new_tokens=tokens, temperature=1.0, seed=1000 * seed + place).stats
        for place, prompt in enumerate(prompts)
    ]


def efficiency(listed: Sequence[Stats]) -> float:
    """Return tokens per pass over the rounds that had a draft."""
    offered = accepted = 0.0
    for stats in listed:
        offered += stats.offered_by_depth[0] if stats.offered_by_depth else 0
        accepted += stats.accepted
    return 1 + accepted / offered


def summed(listed: Sequence[Stats], name: str, length: int) -> list[int]:
    """Return counts by depth, summed over requests."""
    columns = [[*getattr(stats, name), *[0] * length][:length] for stats in listed]
    return [sum(column) for column in zip(*columns, strict=True)]


def halves(prompts: Sequence[Int32]) -> tuple[Sequence[Int32], Sequence[Int32]]:
    """Split prompts into a half for measuring acceptance and a half for checking the prediction."""
    return prompts[::2], prompts[1::2]


def compared(measured: float, predicted: float) -> dict[str, float]:
    """Return both figures and their ratio."""
    return {
        "tokens_per_pass": round(measured, 4),
        "predicted": round(predicted, 4),
        "ratio": round(measured / predicted, 4),
    }


if __name__ == "__main__":
    main()
