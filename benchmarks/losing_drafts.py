"""Simulate what drafts cost that do not pay, and what is lost of those that do, on a clock of passes.

Costs are in plain passes and do not depend on the machine: of a draft's levels, of its nodes in the pass, and of each
token that the head reads when it begins in a text or after a pause. What was unread before a long pause, and in it, is
never read, as by EAGLE; that later drafts are worse then is not simulated. Times that the policy sees fluctuate: by 4 %
at random, with the machine's speed, and one in a hundred is 1.5 times as long; the first pass takes as long as 300, as
in a new process. Every request continues what earlier ones learned. To compare two versions of the package, run both,
setting PYTHONPATH:

    PYTHONPATH=BEFORE/src python benchmarks/losing_drafts.py --version before -o FILE
    python benchmarks/losing_drafts.py --version after -o FILE
    python benchmarks/losing_drafts.py --markdown FILE
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from speculant.cli.env import environment
from speculant.core.engine import RequestedOutputs
from speculant.core.tree import DraftTree, Float64
from speculant.core.verifier import Walk
from speculant.sizing.acceptance import AcceptanceModel
from speculant.sizing.history import PausingHistory
from speculant.sizing.latency import LatencyModel
from speculant.sizing.policy import AdaptiveSizing
from speculant.sizing.throughput import Throughput

PLAIN = 0.01  # of a pass: drafting time of a round without a draft
ROW, ROWS = 0.03, 0.25  # passes: each node, and all of them
MAX_DEPTH = 7
NEEDS = RequestedOutputs(hidden_layers=(0,), hidden_context=16)  # as heads ask for
START = 300  # passes: what the first pass of a process seems to take; it is not counted


@dataclass(frozen=True, slots=True)
class Head:
    """A head that drafts chains.

    Attributes:
        first, further: passes that the first level and each further one take.
        rate: probability that a node is accepted after its parent.
        estimate: the probability that the head states.
    """

    first: float
    further: float
    rate: float
    estimate: float


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of one kind.

    Attributes:
        prompt, text: tokens of each request.
        reading: passes that the head takes to read a token.
        requests: number of requests.
        tenth: tokens of each tenth request's text; None if all are alike.
    """

    prompt: int
    text: int
    reading: float
    requests: int
    tenth: int | None = None


@dataclass(slots=True)
class Text:
    """What the policy asks of a text's session.

    Attributes:
        tokens: number of tokens that the head has not read.
        selective: whether drafts are possible without reading them.
    """

    tokens: int
    selective: bool = False

    def unread(self) -> int:
        return self.tokens

    def forecast(self, nodes: int) -> Float64:
        """Return that nothing is known of a draft but that it takes time by the level."""
        return np.empty(0)

    def take(self) -> int:
        """Read the tokens; return how many they were."""
        found, self.tokens = self.tokens, 0
        return found


HEADS = {
    "never right": Head(0.5, 0.3, 0.02, 0.5),
    "loses": Head(0.4, 0.3, 0.55, 0.55),
    "overrates itself": Head(0.6, 0.4, 0.5, 0.6),
    "cheap and wrong": Head(0.1, 0.02, 0.1, 0.3),
    "gains little": Head(0.3, 0.15, 0.68, 0.68),
    "gains": Head(0.3, 0.1, 0.75, 0.75),
    "gains much": Head(0.2, 0.1, 0.85, 0.85),
}
LOADS = {
    "short": Load(prompt=32, text=60, reading=0.06, requests=80),
    "long text": Load(prompt=32, text=400, reading=0.06, requests=20),
    "long prompt": Load(prompt=1000, text=100, reading=0.02, requests=80),
    "short answer": Load(prompt=1000, text=20, reading=0.02, requests=80),
    "mostly short": Load(prompt=1000, text=20, reading=0.02, requests=80, tenth=400),
}
FIRST = 5  # requests of the beginning, which are reported apart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, help="results file, to which the version is added")
    parser.add_argument("--version", help="name of the package version in the results")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="print a table of these results")
    args = parser.parse_args()
    if args.markdown:
        print(table(json.loads(args.markdown.read_text("utf-8"))))
        return
    if not args.out or not args.version:
        parser.error("name a file for the results by -o and the version by --version")
    results: dict[str, Any] = {
        "environment": environment(),
        "heads": {name: asdict(head) for name, head in HEADS.items()},
        "loads": {name: asdict(load) for name, load in LOADS.items()},
        "versions": {},
    }
    if args.out.exists():
        results = json.loads(args.out.read_text("utf-8"))
    results["versions"][args.version] = {
        head: {load: [simulate(HEADS[head], LOADS[load], seed) for seed in range(args.seeds)] for load in LOADS}
        for head in HEADS
    }
    args.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    print(table(results))


def simulate(head: Head, load: Load, seed: int) -> dict[str, float]:
    """Return the speed relative to plain decoding, of the first requests and of all, and the number of drafts."""
    latency, acceptance, throughput = LatencyModel(maximum=64), AcceptanceModel(), Throughput()
    history = PausingHistory()
    random, pace, drafts, seconds, tokens, first = np.random.default_rng(seed), 0.0, 0, 0.0, 0, 0.0
    for request in range(load.requests):
        sizing = AdaptiveSizing(latency, acceptance, throughput, None, history)
        text = Text(load.prompt)
        state = sizing.open(text)
        end = tokens + (load.tenth if load.tenth and request % 10 == 9 else load.text)
        while tokens < end:
            # 1. Draft as deep as the head's estimate pays.
            [nodes] = sizing.nodes([state])
            depth = min(nodes, 1)
            while 0 < depth < min(nodes, MAX_DEPTH) and head.estimate ** (depth + 1) > state.level_price:
                depth += 1
            levels = np.arange(depth, dtype=np.int32)
            chain = DraftTree(levels + 5, levels - 1, head.estimate ** (levels + 1.0))
            read = text.take() if depth else 0
            [draft] = sizing.trim([state], [chain if depth else DraftTree.empty()])
            # 2. Verify, at the true cost.
            accepted = int(np.argmin(np.append(random.random(len(draft)) < head.rate, False)))
            verifying = 1 + (ROWS + ROW * len(draft) if depth else 0)
            drafting = head.first + head.further * (depth - 1) + load.reading * read if depth else PLAIN
            start = 1 if tokens else START
            seconds, tokens = seconds + verifying + drafting, tokens + accepted + 1
            text.tokens = 0 if depth or NEEDS.rests(state.rest) else text.tokens + 1  # a long pause drops them
            drafts += bool(depth)
            # 3. The policy sees times that fluctuate.
            pace = 0.98 * pace + 0.03 * random.normal()
            seen = np.exp(pace + 0.04 * random.normal(size=2)) * np.where(random.random(2) < 0.01, 1.5, 1.0)
            sizing.observe(
                [state],
                [draft],
                [Walk(list(range(accepted)), [7] * (accepted + 1), False)],
                target_seconds=verifying * start * seen[0],
                draft_seconds=drafting * seen[1],
            )
        state.close()
        first = tokens * (1 + PLAIN) / seconds if request + 1 == FIRST else first
    return {"first": round(first, 4), "all": round(tokens * (1 + PLAIN) / seconds, 4), "drafts": drafts}


def table(results: dict[str, Any]) -> str:
    """Return a Markdown table: mean speed of the first requests and of all, for each version."""
    versions = results["versions"]
    columns = [f"{load}, {version}" for load in LOADS for version in versions]
    lines = [["head", *columns], ["---", *["---:"] * len(columns)]]
    for head in HEADS:
        cells = [cell(versions[version][head][load]) for load in LOADS for version in versions]
        lines.append([head, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(runs: list[dict[str, float]]) -> str:
    return " / ".join(f"{np.mean([run[part] for run in runs]):.3f}" for part in ("first", "all"))


if __name__ == "__main__":
    main()
