"""How close sizes chosen round by round come to the best fixed size, on recorded answers and a measured step cost.

The answers are played as in `speculant replay`, and every round is charged what the curve says for its nodes, with
noise; drafting is charged 250 microseconds. Throughput is in plain decoding's.

    python benchmarks/sizing.py --step-cost benchmarks/results/step-cost-bf16.json -o benchmarks/results/sizing.json
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from speculant.api.speculator import MOST_NODES
from speculant.bench.replay.player import Playback
from speculant.bench.replay.traces import Recording, read_recordings
from speculant.core.drafter import Verified
from speculant.core.tree import DraftTree
from speculant.registry import find_method
from speculant.sizing.acceptance import Values
from speculant.sizing.latency import RoundCost
from speculant.sizing.policy import BestSize, FixedSize, Sizing
from speculant.sizing.step_cost import StepCost, read_step_cost
from speculant.verifiers.sample_then_follow import sample_then_follow

VOCABULARY = 128_256
FILES = (
    "llama31-8b-gsm8k",
    "llama31-8b-cnn",
    "llama31-8b-instructcoder",
    "llama31-8b-sharegpt",
    "llama31-8b-runaway",
    "vicuna-7b-alpaca",
    "vicuna-7b-mtbench",
)
FIXED = (0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
DRAFTING, NOISE = 250e-6, 0.05


def play(recordings: list[Recording], method: str, curve: StepCost, sizing: Callable[[], Sizing]) -> dict[str, float]:
    """Return throughput in plain decoding's, MAT and nodes per round."""
    random = np.random.default_rng(0)
    drafter = find_method(method).build(vocabulary=VOCABULARY, tokenizer="", memory_limit=256 << 20)
    seconds, tokens, rounds, nodes = 0.0, 0, 0, 0
    for recording in recordings:
        output, done = recording.output.tolist(), 0
        session, size = drafter.open(recording.prompt), sizing()
        while done < len(output):
            budget = size.budget()
            tree = size.cut(session.propose(budget) if budget else DraftTree.empty())
            path, said, _ = sample_then_follow(tree, Playback(output, done).draw)
            session.observe(Verified(tree=tree, path=np.array(path, np.int32), tokens=np.array(said, np.int32)))
            cost = float(curve.of(np.array([len(tree)]))[0])
            draft = DRAFTING if budget else 0.0
            size.learn(tree, path, said, target=cost * (1 + NOISE * random.exponential()), draft=draft)
            seconds, tokens, rounds, nodes = seconds + cost + draft, tokens + len(said), rounds + 1, nodes + len(tree)
            done += len(said)
        session.close()
    plain = float(curve.of(np.zeros(1))[0])
    return {"throughput": tokens / seconds * plain, "mat": tokens / rounds, "nodes_per_round": nodes / rounds}


def chosen(known: StepCost | None) -> Callable[[], Sizing]:
    """Return what makes the sizing of each request of one run."""
    cost, values = RoundCost(most=MOST_NODES, known=known), Values()
    return lambda: BestSize(cost, values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--step-cost", type=Path, required=True)
    parser.add_argument("--method", default="mix")
    parser.add_argument("--limit", type=int, default=40, help="requests of each file")
    args = parser.parse_args()
    curve = read_step_cost(args.step_cost)
    rows: list[dict[str, Any]] = []
    texts = np.random.default_rng(1).integers(0, VOCABULARY, (5, 700), np.int32)
    noise = [Recording(prompt=text[:200], output=text[200:]) for text in texts]
    for name in (*FILES, "random"):
        path = Path(os.environ["SPECULANT_DATA"]) / "traces" / f"{name}.jsonl"
        recordings = noise if name == "random" else list(read_recordings(path))[: args.limit]
        fixed = {n: play(recordings, args.method, curve, lambda n=n: FixedSize(n))["throughput"] for n in FIXED}  # type: ignore[misc]
        best = max(fixed, key=lambda n: fixed[n])
        row = {"file": name, "method": args.method, "best_fixed": best, "fixed": fixed}
        for way, known in (("tuned", curve), ("climbed", None)):
            found = play(recordings, args.method, curve, chosen(known))
            row[way] = found | {"of_best_fixed": found["throughput"] / fixed[best]}
            print(name, way, f"best fixed {best}: {fixed[best]:.3f}", {k: round(v, 3) for k, v in row[way].items()})
        rows.append(row)
    facts = {"nodes": curve.nodes.tolist(), "seconds": curve.seconds.tolist()}
    args.out.write_text(json.dumps({"step_cost": facts, "limit": args.limit, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
