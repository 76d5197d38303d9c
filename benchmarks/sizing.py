"""Compare automatic draft sizes with the best fixed size, on recorded answers and a measured step cost.

The answers are replayed as in `speculant replay`. Every round is charged the cost of its nodes on the curve, with
noise, and drafting is charged 250 microseconds. Throughput is relative to plain decoding.

    python benchmarks/sizing.py --step-cost benchmarks/results/step-cost-bf16.json -o benchmarks/results/sizing.json

Costs are interpolated linearly between measured rows, so a step cost with jumps must list every number of rows.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from speculant.bench.replay.player import make_recorded_sequence
from speculant.bench.replay.traces import Recording, read_recordings
from speculant.core.drafter import Budget, Drafter, Session, SessionRequest
from speculant.core.engine import MAX_NODES, RequestedOutputs
from speculant.core.tree import DraftTree
from speculant.decoding.step import DecodingComponents, step
from speculant.engines.recorded import RecordedEngine
from speculant.registry import BuildContext, build_drafter
from speculant.sizing.acceptance import AcceptanceModel
from speculant.sizing.contract import Sizing
from speculant.sizing.fixed import FixedSizing
from speculant.sizing.latency import LatencyModel
from speculant.sizing.policy import AdaptiveSizing
from speculant.sizing.step_cost import StepCost, read_step_cost
from speculant.sizing.throughput import Throughput
from speculant.verifiers.sample_then_follow import SampleThenFollow

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


class Clock:
    """A clock that only passes and drafting advance."""

    def __init__(self, curve: StepCost) -> None:
        self.now, self._curve, self._random = 0.0, curve, np.random.default_rng(0)
        self.charged = 0.0  # total without noise

    def __call__(self) -> float:
        return self.now

    def run_pass(self, rows: int) -> None:
        cost = float(self._curve.of(np.array([rows - 1]))[0])
        self.charged += cost
        self.now += cost * (1 + NOISE * self._random.exponential())

    def draft(self) -> None:
        self.charged += DRAFTING
        self.now += DRAFTING


class Charged(Drafter):
    """A drafter that takes a fixed time per draft."""

    def __init__(self, drafter: Drafter, clock: Clock) -> None:
        self._drafter, self._clock = drafter, clock

    @property
    def needs(self) -> RequestedOutputs:
        return self._drafter.needs

    def open(self, start: SessionRequest) -> Session:
        return self._drafter.open(start)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[Budget]) -> list[DraftTree]:
        if any(budget.nodes for budget in budgets):
            self._clock.draft()
        return self._drafter.propose(sessions, budgets)


def play(recordings: list[Recording], method: str, curve: StepCost, sizing: Callable[[], Sizing]) -> dict[str, float]:
    """Return throughput relative to plain decoding, MAT and nodes per round."""
    clock = Clock(curve)
    drafter = build_drafter(method, BuildContext(vocabulary=VOCABULARY, memory_limit=256 << 20))
    tokens, rounds, nodes = 0, 0, 0
    for recording in recordings:
        parts = DecodingComponents(
            engine=RecordedEngine(on_pass=clock.run_pass),
            drafter=Charged(drafter, clock),
            verifier=SampleThenFollow(),
            sizing=sizing(),
            work_clock=clock,
        )
        sequence = make_recorded_sequence(recording, parts)
        while not sequence.ended:
            [done] = step([sequence], parts).each
            tokens, rounds, nodes = tokens + len(done.walk.tokens), rounds + 1, nodes + len(done.draft)
        sequence.close()
    plain = float(curve.of(np.zeros(1))[0])
    return {"throughput": tokens / clock.charged * plain, "mat": tokens / rounds, "nodes_per_round": nodes / rounds}


def chosen(known: StepCost | None) -> Callable[[], Sizing]:
    """Return a function that creates the sizing for each request of one run."""
    latency, acceptance, throughput = LatencyModel(maximum=MAX_NODES, known=known), AcceptanceModel(), Throughput()
    return lambda: AdaptiveSizing(latency, acceptance, throughput)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--step-cost", type=Path, required=True)
    parser.add_argument("--method", default="mix")
    parser.add_argument("--limit", type=int, default=40, help="requests per file")
    parser.add_argument("--tokens", type=int, default=1 << 30, help="maximum tokens per output")
    parser.add_argument("--files", default=",".join((*FILES, "random")))
    parser.add_argument("--fixed", default=",".join(map(str, FIXED)), help="fixed sizes to compare with")
    args = parser.parse_args()
    curve = read_step_cost(args.step_cost)
    rows: list[dict[str, Any]] = []
    texts = np.random.default_rng(1).integers(0, VOCABULARY, (5, 700), np.int32)
    noise = [Recording(prompt=text[:200], output=text[200:]) for text in texts]
    for name in args.files.split(","):
        path = Path(os.environ["SPECULANT_DATA"]) / "traces" / f"{name}.jsonl"
        recordings = noise if name == "random" else list(read_recordings(path))[: args.limit]
        recordings = [replace(each, output=each.output[: args.tokens]) for each in recordings]
        fixed = {
            n: play(recordings, args.method, curve, lambda n=n: FixedSizing(n))["throughput"]  # type: ignore[misc]
            for n in map(int, args.fixed.split(","))
        }
        best = max(fixed, key=lambda n: fixed[n])
        row = {"file": name, "method": args.method, "best_fixed": best, "fixed": fixed}
        for way, known in (("tuned", curve), ("climbed", None)):
            found = play(recordings, args.method, curve, chosen(known))
            row[way] = found | {"of_best_fixed": found["throughput"] / fixed[best]}
            print(name, way, f"best fixed {best}: {fixed[best]:.3f}", {k: round(v, 3) for k, v in row[way].items()})
        rows.append(row)
    facts = {"nodes": curve.nodes.tolist(), "seconds": curve.seconds.tolist()}
    args.out.write_text(
        json.dumps({"step_cost": facts, "limit": args.limit, "tokens": args.tokens, "rows": rows}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
