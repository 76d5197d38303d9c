"""Measure how much of a perfect choice's gain is realised by choosing between a memory's chain and a head's.

    python benchmarks/chain_choice.py -o benchmarks/results/chain-choice.json

Recorded outputs of Llama 3.1 8B with the acceptance of its EAGLE head, and `mix` with an empty memory. At each position
one of the two chains is drafted: the memory's, the head's, the one with more accepted tokens (*perfect*), the choice of
`speculant replay --unite` (*by band*), or that of the engines' `ChainUnion` (*union*). Recordings contain only the
accepted tokens of the head, so `ChainUnion` lacks its best signal here: which tokens both drafted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from speculant.bench.replay.player import replay
from speculant.bench.replay.recorded import DRAFTS, replay_recorded
from speculant.bench.replay.traces import Recording, read_recordings
from speculant.bench.replay.united import ReplayUnitedSession, UnitedDrafter, select_recorded
from speculant.cli.env import environment
from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.tree import ROOT, DraftTree, Float64
from speculant.drafters.top_nodes import top_nodes
from speculant.integrations.chain_union import AgreementHistory, ChainUnion
from speculant.registry import BuildContext, build_drafter
from targets import data_folder

HEAD, TRACES, LENGTHS = "eagle", ("cnn", "gsm8k", "instructcoder", "sharegpt"), (5, 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, help="requests per trace, from the start; default: all")
    args = parser.parse_args()
    results: dict[str, Any] = {"environment": environment(), "limit": args.limit, "traces": {}}
    for trace in TRACES:
        read = list(read_recordings(data_folder() / f"traces/llama31-8b-{trace}.jsonl"))
        recordings = select_recorded(HEAD, read)[: args.limit]
        results["traces"][trace] = {length: measure(recordings, length) for length in LENGTHS}
        print(trace, results["traces"][trace], flush=True)
        args.out.write_text(json.dumps(results, indent=1) + "\n")


def measure(recordings: Sequence[Recording], length: int) -> dict[str, float]:
    """Return the MAT of each choice, and its share of the perfect choice's gain."""
    found = {"head": replay_recorded(HEAD, recordings, drafts=length).mat}
    found["memory"] = replay(memory(recordings), recordings, nodes=length, chain=True).mat
    for name in ("by band", "union", "perfect"):
        drafter = Chooser(memory(recordings), iter(recordings), name)
        found[name] = replay(drafter, recordings, nodes=length, chain=True).mat
    better = max(found["head"], found["memory"])
    gain = found["perfect"] - better
    kept = {f"kept {name}": (found[name] - better) / gain for name in ("by band", "union")}
    return {name: round(value, 3) for name, value in (found | kept).items()}


def memory(recordings: Sequence[Recording]) -> Drafter:
    """Return `mix` with an empty memory."""
    vocabulary = 1 + max(int(max(each.prompt.max(), each.output.max())) for each in recordings)
    return build_drafter(
        "mix", BuildContext(vocabulary=vocabulary, tokenizer="", memory_limit=256 << 20, bases=(), settings=None)
    )


class Chooser(UnitedDrafter):
    """Unites a memory and a recorded head by one of the choices."""

    def __init__(self, memory: Drafter, requests: Iterator[Recording], way: str) -> None:
        super().__init__(memory, requests, HEAD)
        self._way, self._union = way, ChainUnion()

    def open(self, start: SessionRequest) -> Session:
        session = super().open(start)
        assert isinstance(session, ReplayUnitedSession)
        return session if self._way == "by band" else ChosenSession(session, self._way, self._union)


class ChosenSession(ReplayUnitedSession):
    """One request, with a different choice than replay's."""

    def __init__(self, session: ReplayUnitedSession, way: str, union: ChainUnion) -> None:
        super().__init__(session._memory, session._output, session._yields, session._rates, session._choice)
        self._way, self._union, self._history = way, union, AgreementHistory()

    def _chain(self, budget: Budget, weights: Float64) -> DraftTree:
        own, head = self._own, self._head
        if self._way == "union":
            maximum = min(budget.depth, budget.nodes)
            return self._union.unite(self._history, at=self._at, head=head, memory=own, maximum=maximum, agreeing=False)
        text = self._output[self._at : self._at + DRAFTS].tolist()
        if common(own.tokens.tolist(), text) > common(head, text):
            return own
        return top_nodes(head, list(range(ROOT, len(head) - 1)), weights[: len(head)].tolist(), len(head))

    def observe(self, verified: Verified) -> None:
        super().observe(verified)
        self._union.observe(self._history, self._output[: self._at])


def common(drafted: Sequence[int], text: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    pairs = list(zip(drafted, text, strict=False))
    return next((i for i, (first, second) in enumerate(pairs) if first != second), len(pairs))


if __name__ == "__main__":
    main()
