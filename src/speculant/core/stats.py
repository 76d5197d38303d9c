"""What happened while decoding: how much was accepted, how deep, and where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from speculant.core.tree import ROOT, DraftTree


@dataclass(slots=True)
class Stats:
    """Counts and seconds of one request; grows while it runs.

    Attributes:
        method: the drafting method.
        prompt_tokens, tokens: tokens read (without those of a kept cache) and tokens emitted.
        rounds: target passes after the prefill.
        reused_tokens: tokens of the prompt that were not read, since a prefix cache held them.
        drafted, accepted: draft nodes verified, and those on accepted paths.
        offered_by_depth: [d - 1] counts the rounds that reached depth d with a draft to check there.
        accepted_by_depth: [d - 1] counts those of them in which it was right.
        prefill_seconds, draft_seconds, target_seconds: the prompt's pass, drafting and learning, target passes.
        seconds: the whole request, prefill included.
        sizes: why drafts were of the sizes they were; empty where the size was given.
        notes: what the user should know about how this was run.
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
        """Mean tokens per round, bonus included; prefill's token belongs to no round. 1.0 for plain decoding."""
        return (self.tokens - 1) / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens emitted per second of the whole request, prefill included."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def acceptance_by_depth(self) -> list[float]:
        """Of the rounds that got to a depth with a draft, the share in which it was right there."""
        return [a / o for a, o in zip(self.accepted_by_depth, self.offered_by_depth, strict=True)]

    @property
    def time_share(self) -> dict[str, float]:
        """Shares of the time after prefill: draft, target and the rest (sampling, stop rules, streaming)."""
        whole = self.seconds - self.prefill_seconds
        if whole <= 0:
            return {"draft": 0.0, "target": 0.0, "rest": 0.0}
        draft, target = self.draft_seconds / whole, self.target_seconds / whole
        return {"draft": draft, "target": target, "rest": max(0.0, 1 - draft - target)}

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain numbers and lists."""
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
        """Return the end-of-run block for people."""
        share = self.time_share
        depths = "  ".join(f"{rate:.0%}" for rate in self.acceptance_by_depth[:12]) or "nothing drafted"
        lines = [
            f"method      {self.method}",
            f"tokens      {self.tokens} in {self.seconds:.2f} s: {self.tokens_per_second:.1f} tokens/s",
            f"prompt      {self.prompt_tokens} tokens in {self.prefill_seconds:.3f} s",
            f"rounds      {self.rounds}, {self.mat:.2f} tokens per target pass",
            f"accepted    {self.accepted} of {self.drafted} drafted; by depth: {depths}",
            f"time        draft {share['draft']:.1%}, target {share['target']:.1%}, rest {share['rest']:.1%}",
        ]
        if self.sizes:
            lines.append(f"sizes       {self.sizes}")
        return "\n".join(lines + [f"note        {note}" for note in self.notes])


@dataclass(slots=True, kw_only=True)
class BatchStats:
    """Counts and seconds of a batch; grows while it runs.

    Attributes:
        size: the most requests in a pass.
        tokens: of all requests, the first ones, which prompts' passes yield, included.
        rounds: target passes after prompts.
        sequences: requests that took part, summed over rounds.
        drafted: draft nodes verified.
        prefill_seconds, draft_seconds, target_seconds: reading prompts, drafting and learning, target passes.
        seconds: all steps, also those that failed.
        notes: what the user should know about how this was run.
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
        """Count a round in which these drafts yielded so many tokens."""
        self.rounds += 1
        self.sequences += len(drafts)
        self.drafted += sum(len(tree) for tree in drafts)
        self.tokens += tokens
        self.target_seconds += target
        self.draft_seconds += draft

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second over all requests, prompts' time included."""
        return self.tokens / self.seconds if self.seconds else 0.0
