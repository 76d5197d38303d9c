"""Statistics of decoding: how much was accepted, at which depth, and where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from speculant.core.tree import ROOT, DraftTree


@dataclass(slots=True)
class Stats:
    """Counts and times of one request, updated while it runs.

    Attributes:
        method: the drafting method.
        prompt_tokens, tokens: tokens read (without those of a kept cache) and tokens emitted.
        rounds: target passes after the prefill.
        reused_tokens: prompt tokens that were not read, because a prefix cache held them.
        drafted, accepted: draft nodes verified, and those on accepted paths.
        offered_by_depth: [d - 1] counts the rounds that accepted d - 1 nodes and had a draft at depth d.
        accepted_by_depth: [d - 1] counts those of them that accepted a node at depth d.
        prefill_seconds, draft_seconds, target_seconds: the prompt's pass; drafting and learning; target passes, with
            choosing and committing their tokens. The last two are CPU time if the decoding thread does this work on a
            CPU.
        seconds: time of the whole request, including prefill.
        sizes: explanation of the draft sizes; empty if the size was fixed.
        notes: remarks for the user on how the request was run.
    """

    method: str
    prompt_tokens: int = 0
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    offered_by_depth: list[int] = field(default_factory=list)
    accepted_by_depth: list[int] = field(default_factory=list)
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    seconds: float = 0.0
    sizes: str = ""
    notes: list[str] = field(default_factory=list)
    reused_tokens: int = 0

    def add_round(self, tree: DraftTree, path: list[int], tokens: list[int]) -> None:
        """Count a round."""
        self.rounds += 1
        self.tokens += len(tokens)
        self.drafted += len(tree)
        self.accepted += len(path)
        parents = tree.parents.tolist()
        reached = len(path) + (len(path) < len(parents) and (path[-1] if path else ROOT) in parents)
        while len(self.offered_by_depth) < reached:
            self.offered_by_depth.append(0)
            self.accepted_by_depth.append(0)
        for depth in range(reached):
            self.offered_by_depth[depth] += 1
        for depth in range(len(path)):
            self.accepted_by_depth[depth] += 1

    @property
    def mat(self) -> float:
        """Mean tokens per round, including the bonus token but not the prefill's. 1.0 for plain decoding."""
        return compute_mat(self.tokens, self.rounds)

    @property
    def tokens_per_second(self) -> float:
        """Tokens emitted per second of the whole request, including prefill."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def acceptance_by_depth(self) -> list[float]:
        """Acceptance rate at each depth, among the rounds that reached it with a draft."""
        return [a / o for a, o in zip(self.accepted_by_depth, self.offered_by_depth, strict=True)]

    @property
    def time_share(self) -> dict[str, float]:
        """Shares of the time after prefill: draft, target, and rest (sampling, stop rules, streaming)."""
        whole = self.seconds - self.prefill_seconds
        if whole <= 0:
            return {"draft": 0.0, "target": 0.0, "rest": 0.0}
        draft, target = self.draft_seconds / whole, self.target_seconds / whole
        return {"draft": draft, "target": target, "rest": max(0.0, 1 - draft - target)}

    def to_json(self) -> dict[str, Any]:
        """Return the statistics as plain numbers, strings and lists."""
        return {
            "method": self.method,
            "prompt_tokens": self.prompt_tokens,
            "tokens": self.tokens,
            "rounds": self.rounds,
            "mat": self.mat,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_by_depth": self.acceptance_by_depth,
            "seconds": self.seconds,
            "prefill_seconds": self.prefill_seconds,
            "tokens_per_second": self.tokens_per_second,
            "time_share": self.time_share,
            "sizes": self.sizes,
            "notes": self.notes,
        }

    def report(self) -> str:
        """Return the human-readable summary printed at the end of a run."""
        lines = [format_speed(self.tokens, self.seconds), format_drafting([self], self.mat), *self.format_details()]
        return "\n".join(lines + format_notes([self]))

    def format_details(self) -> list[str]:
        """Return the lines of the summary that break down time and acceptance."""
        share = self.time_share
        depths = "  ".join(f"{rate:.0%}" for rate in self.acceptance_by_depth[:12]) or "nothing drafted"
        return [
            f"prompt      {self.prompt_tokens} tokens in {self.prefill_seconds:.3f} s",
            f"rounds      {self.rounds}; accepted by depth: {depths}",
            f"time        draft {share['draft']:.1%}, target {share['target']:.1%}, rest {share['rest']:.1%}",
            *([f"sizes       {self.sizes}"] if self.sizes else []),
        ]


def compute_mat(tokens: int, rounds: int, *, texts: int = 1) -> float:
    """Return MAT, the mean number of tokens per round, including the bonus token; 0 without rounds.

    Args:
        tokens: number of tokens emitted.
        rounds: target passes after the prefill.
        texts: number of tokens that came from prefill passes rather than rounds, one per text; 0 in replay, where the
            first token too comes from a round.
    """
    return (tokens - texts) / rounds if rounds else 0.0


def format_speed(tokens: int, seconds: float) -> str:
    """Return the report line for tokens per second."""
    rate = tokens / seconds if seconds else 0.0
    return f"speed       {rate:.1f} tokens/s: {tokens} tokens in {seconds:.2f} s"


def format_drafting(stats: Sequence[Stats], mat: float) -> str:
    """Return the report line for the method, MAT and acceptance of one or more requests."""
    drafted, accepted = sum(each.drafted for each in stats), sum(each.accepted for each in stats)
    acceptance = f"{accepted} of {drafted} drafted tokens accepted" if drafted else "nothing drafted"
    return f"drafting    {stats[0].method}: {mat:.2f} tokens per target pass, {acceptance}"


def format_notes(stats: Sequence[Stats]) -> list[str]:
    """Return the report lines for the notes of one or more requests, without duplicates."""
    return [f"note        {note}" for note in dict.fromkeys(note for each in stats for note in each.notes)]


@dataclass(slots=True, kw_only=True)
class BatchStats:
    """Counts and times of a batch, updated while it runs.

    Attributes:
        size: maximum number of requests in a pass.
        tokens: tokens emitted by all requests, including the first ones, which the prefill passes yield.
        rounds: target passes after the prefill.
        sequences: number of requests in each round, summed over rounds.
        drafted: draft nodes verified.
        prefill_seconds, draft_seconds, target_seconds: reading prompts, drafting and learning, target passes.
        seconds: time of all steps, including failed ones.
        notes: remarks for the user on how the batch was run.
    """

    size: int
    tokens: int = 0
    rounds: int = 0
    sequences: int = 0
    drafted: int = 0
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def add_round(self, drafts: Sequence[DraftTree], tokens: int, *, target: float, draft: float) -> None:
        """Count a round in which these drafts yielded `tokens` tokens in total."""
        self.rounds += 1
        self.sequences += len(drafts)
        self.drafted += sum(len(tree) for tree in drafts)
        self.tokens += tokens
        self.target_seconds += target
        self.draft_seconds += draft

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second over all requests, including prefill time."""
        return self.tokens / self.seconds if self.seconds else 0.0
