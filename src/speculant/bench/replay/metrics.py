"""The metrics of a replay as plain numbers, which the table, the JSON and the page show.

Times are in microseconds. Unknown values are None: the cost of a drafter whose acceptance was recorded, the bytes of
one that does not report them. The expected speed-up is the seconds of plain decoding (one pass without nodes per token)
divided by those of the rounds (a pass over the nodes of each draft, proposing, learning, and learning the prompts).
Neither includes the prefill.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from speculant.bench.replay.player import DraftingCost, Float64, ReplayResult
from speculant.core.stats import compute_mat
from speculant.sizing.step_cost import StepCost

SLICES = 20


def run_metrics(
    file: str,
    method: str,
    nodes: int | Literal["auto"],
    result: ReplayResult,
    cost: StepCost | None = None,
    *,
    chain: bool = False,
) -> dict[str, Any]:
    """Return the row for a file and a method.

    Args:
        file, method: their names.
        nodes: maximum nodes per draft; "auto" where each had its own size.
        result: the replay.
        cost: cost of target passes, for the expected speed-up.
        chain: whether drafts were chains.
    """
    everything = np.arange(len(result.categories))
    return {
        "file": file,
        "method": method,
        "shape": "chain" if chain else "tree",
        "nodes": nodes,
        "requests": len(result.categories),
        **metrics(result, everything, cost),
        "memory_bytes": result.drafting and result.drafting.memory_bytes,
        "ece": result.drafting and result.drafting.reliability.ece,
        "categories": by_category(result, cost),
        "by_depth": by_depth(result),
        "over_time": over_time(result),
        "reliability": result.drafting.reliability.to_json() if result.drafting else [],
    }


def metrics(result: ReplayResult, requests: Any, cost: StepCost | None = None) -> dict[str, Any]:
    """Return the metrics over the requests with these numbers."""
    chosen = np.isin(result.request, requests)
    rounds = int(chosen.sum())
    tokens = int(result.accepted[chosen].sum()) + rounds
    found: dict[str, Any] = {"tokens": tokens, "rounds": rounds, "mat": compute_mat(tokens, rounds, texts=0)}
    drafting = result.drafting
    if drafting is None or not rounds:
        unknown = {"mean": None, "p50": None, "p99": None}
        return found | {"nodes_per_round": None, "draft_us": unknown, "learn_us": None, "speedup": None}
    opened, learned = drafting.open_seconds[requests].sum(), drafting.learn_seconds[chosen].sum()
    return found | {
        "nodes_per_round": float(drafting.nodes[chosen].mean()),
        "draft_us": _spread(drafting.propose_seconds[chosen]),
        "learn_us": {
            "per_token": float(learned / tokens * 1e6),
            "per_prompt_token": float(opened / result.prompt_tokens[requests].sum() * 1e6),
        },
        "speedup": None if cost is None else _speedup(tokens, chosen, opened, drafting, cost),
    }


def by_category(result: ReplayResult, cost: StepCost | None = None) -> list[dict[str, Any]]:
    """Return the metrics per category, in order of appearance."""
    categories = np.array(result.categories)
    names = dict.fromkeys(result.categories)
    return [{"category": name, **metrics(result, np.flatnonzero(categories == name), cost)} for name in names]


def by_depth(result: ReplayResult) -> list[dict[str, int | None]]:
    """Return, per depth from 1, how many drafts reached it and how many were accepted down to it."""
    drafting = result.drafting
    return [
        {
            "depth": depth,
            "drafted": None if drafting is None else int((drafting.deepest >= depth).sum()),
            "accepted": int((result.accepted >= depth).sum()),
        }
        for depth in range(1, int(result.accepted.max(initial=0)) + 1)
    ]


def over_time(result: ReplayResult, slices: int = SLICES) -> list[dict[str, Any]]:
    """Return the MAT of consecutive slices of the requests, of about the same number each."""
    requests = len(result.categories)
    edges = np.linspace(0, requests, min(slices, requests) + 1).round().astype(int)
    found = []
    for first, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        inside = (result.request >= first) & (result.request < end)
        rounds = int(inside.sum())
        tokens = int(result.accepted[inside].sum()) + rounds
        found.append({"requests": end, "tokens": tokens, "rounds": rounds, "mat": compute_mat(tokens, rounds, texts=0)})
    return found


def _spread(seconds: Float64) -> dict[str, float]:
    middle, high = np.percentile(seconds, [50, 99])
    return {"mean": float(seconds.mean() * 1e6), "p50": float(middle * 1e6), "p99": float(high * 1e6)}


def _speedup(tokens: int, chosen: Any, opened: float, drafting: DraftingCost, cost: StepCost) -> float:
    passes = cost.of(drafting.nodes[chosen]).sum()
    drafted = drafting.propose_seconds[chosen].sum() + drafting.learn_seconds[chosen].sum() + opened
    return float(tokens * cost.of(np.zeros(1))[0] / (passes + drafted))
