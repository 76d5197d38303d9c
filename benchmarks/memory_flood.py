"""Flood memories with random ids: do they stay within their limit, and do rounds stay as fast as at the start?

Uniformly random token ids are the worst case: hardly any context repeats, so everything is new to every memory.
Requests of 1000 prompt tokens and 1000 output tokens follow each other up to a given number of ids. The first 20 tokens
of an output are committed one per round: no drafted token is accepted, and the target's top tokens are random too.
These rounds are timed; the rest of the output is committed at once. Runs follow each other, each in its own process.
With --base, memories that support a base use a frozen base of 128,256 ids.

    python benchmarks/memory_flood.py -o benchmarks/results/memory-flood.json
    python benchmarks/memory_flood.py --methods mix --base FILE -o benchmarks/results/memory-flood-base.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mix_memory import opened
from speculant.cli.env import environment
from speculant.core.drafter import EMPTY_PATH, Budget, Drafter, SessionRequest, Verified
from speculant.core.tree import DraftTree
from speculant.registry import METHODS, BuildContext, build_drafter

VOCABULARY = 128_256
PROMPT, ANSWER = 1000, 1000
ROUNDS = 20
NODES = 64
EDGE = 100_000  # ids at the start and at the end over which rounds are compared
STRETCHES = 25
IDS_PER_MB = 50_000  # maximum; a small limit is reached early


@dataclass(slots=True)
class Stretch:
    """Measurements over a range of the ids.

    Attributes:
        ids: total ids learned at the end of the range, including earlier ranges.
        memory_bytes: the largest memory that the drafter reported after a request.
        rss_bytes: the largest resident memory of the process after a request.
        pause: seconds of the longest call that opened or closed a request, including its learning.
        nodes: nodes drafted in all rounds.
        micros: microseconds of each round, propose and observe together.
    """

    ids: int = 0
    memory_bytes: int = 0
    rss_bytes: int = 0
    pause: float = 0
    nodes: int = 0
    micros: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Return the measurements for JSON."""
        p50, p99 = np.percentile(self.micros, [50, 99])
        return {
            "tokens": self.ids,
            "memory_bytes": self.memory_bytes,
            "rss_bytes": self.rss_bytes,
            "longest_pause_seconds": self.pause,
            "nodes_per_round": self.nodes / len(self.micros),
            "us_per_row": p50 / (self.nodes / len(self.micros) + 1),
            "round_us": {"p50": p50, "p99": p99, "max": max(self.micros)},
        }


class Flood:
    """A sequence of random requests to one drafter."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.ids = 0
        self._random = np.random.default_rng(0)

    def until(self, tokens: int) -> Stretch:
        """Continue until `tokens` ids are learned, and return the measurements."""
        stretch = Stretch()
        while self.ids < tokens:
            self._request(stretch)
            stretch.memory_bytes = max(stretch.memory_bytes, getattr(self.drafter, "memory_bytes", 0))
            stretch.rss_bytes = max(stretch.rss_bytes, status_bytes("VmRSS"))
        stretch.ids = self.ids
        return stretch

    def _request(self, stretch: Stretch) -> None:
        prompt = self._draw(PROMPT)
        began = time.perf_counter()
        session = self.drafter.open(SessionRequest(prompt=prompt))
        stretch.pause = max(stretch.pause, time.perf_counter() - began)
        session.observe(self._verified(DraftTree.empty()))
        for _ in range(ROUNDS):
            began = time.perf_counter()
            tree = session.propose(Budget(nodes=NODES, depth=ANSWER))
            proposed = time.perf_counter()
            verified = self._verified(tree)
            committed = time.perf_counter()
            session.observe(verified)
            stretch.micros.append((proposed - began + time.perf_counter() - committed) * 1e6)
            stretch.nodes += len(tree)
        began = time.perf_counter()
        rest = self._draw(ANSWER - ROUNDS - 1)
        session.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=rest))
        session.close()
        stretch.pause = max(stretch.pause, time.perf_counter() - began)
        self.ids += PROMPT + ANSWER

    def _verified(self, tree: DraftTree) -> Verified:
        """Return a round that accepts nothing and ends with the target's token."""
        k = self.drafter.needs.top_k
        rows = len(tree) + 1
        logits = -np.sort(self._random.exponential(2, (rows, k)), axis=1).astype(np.float32)
        return Verified(
            tree=tree,
            path=EMPTY_PATH,
            tokens=self._draw(1),
            top_ids=self._draw((rows, k)) if k else None,
            top_logits=logits if k else None,
        )

    def _draw(self, shape: int | tuple[int, int]) -> np.ndarray[Any, np.dtype[np.int32]]:
        return self._random.integers(0, VOCABULARY, shape, np.int32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--limits", type=int, nargs="+", default=[256, 32], metavar="MB")
    parser.add_argument(
        "--methods", nargs="+", default=[name for name in METHODS if name not in ("none", "draft-model")]
    )
    parser.add_argument("--seconds", type=float, default=300, help="maximum per run; slower methods learn fewer ids")
    parser.add_argument("--base", type=Path)
    args = parser.parse_args()
    runs = [
        (method, limit << 20, min(args.tokens, limit * IDS_PER_MB), args.seconds, args.base)
        for limit in args.limits
        for method in args.methods
    ]
    rows = []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as process:
        for row in process.imap(run, runs):
            rows.append(row)
            print(json.dumps({name: value for name, value in row.items() if name != "course"}), flush=True)
    args.out.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=1) + "\n")


def run(what: tuple[str, int, int, float, Path | None]) -> dict[str, Any]:
    """Run a method under a memory limit until the ids are learned or the time is up; return the measurements."""
    method, limit, tokens, seconds, base = what
    bases = [opened(base)] if base else []
    flood = Flood(build_drafter(method, BuildContext(vocabulary=VOCABULARY, memory_limit=limit, bases=bases)))
    flood.until(1)  # loads what only the first request needs
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
    began, idle = time.perf_counter(), status_bytes("VmRSS")
    course = [flood.until(EDGE)]
    step = tokens // STRETCHES
    while flood.ids < tokens - EDGE and time.perf_counter() - began < seconds:
        course.append(flood.until(min(flood.ids + step, tokens - EDGE)))
    course.append(flood.until(flood.ids + EDGE))
    figures = [stretch.figures() for stretch in course]
    return {
        "method": method,
        "limit_bytes": limit,
        "base_bytes": base.stat().st_size if base else 0,
        "tokens": flood.ids,
        "ended_by": "tokens" if flood.ids >= tokens else "time",
        "seconds": time.perf_counter() - began,
        "max_memory_bytes": max(stretch.memory_bytes for stretch in course),
        "rss_growth_bytes": max(stretch.rss_bytes for stretch in course) - idle,
        "peak_rss_growth_bytes": status_bytes("VmHWM") - idle,
        "longest_pause_seconds": max(stretch.pause for stretch in course),
        "slowdown": figures[-1]["round_us"]["p50"] / figures[0]["round_us"]["p50"],
        "slowdown_per_row": figures[-1]["us_per_row"] / figures[0]["us_per_row"],
        "start": figures[0],
        "end": figures[-1],
        "course": figures,
    }


def status_bytes(name: str) -> int:
    """Return a memory figure of this process from Linux: VmRSS (current resident size) or VmHWM (its peak)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    main()
