"""A drafter that drafts a given tree, and recordings to play it on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from speculant.bench.replay.traces import Recording
from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.engine import NO_OUTPUTS, RequestedOutputs
from speculant.core.tree import DraftTree


def recording(output: Sequence[int], category: str = "a", prompt: Sequence[int] = (1,), **recorded: Any) -> Recording:
    """Return a recording of those ids."""
    yields = {name: np.array(each, np.int32) for name, each in recorded.items()}
    return Recording(np.array(prompt, np.int32), np.array(output, np.int32), category, yields)


class Scripted(Drafter):
    """Drafts the same tree every round and remembers what its sessions observed."""

    memory_bytes = 7

    def __init__(self, tree: DraftTree) -> None:
        self.tree = tree
        self.prompts: list[list[int]] = []
        self.seen: list[list[int]] = []
        self.closed = 0

    @property
    def needs(self) -> RequestedOutputs:
        return NO_OUTPUTS

    def open(self, start: SessionRequest) -> Session:
        self.prompts.append(start.prompt.tolist())
        return ScriptedSession(self)


class ScriptedSession(Session):
    """A session of it."""

    def __init__(self, owner: Scripted) -> None:
        self.owner = owner

    def propose(self, budget: Budget) -> DraftTree:
        return self.owner.tree.head(budget.nodes).within(depth=budget.depth, trees=budget.trees)

    def observe(self, verified: Verified) -> None:
        self.owner.seen.append(verified.tokens.tolist())

    def close(self) -> None:
        self.owner.closed += 1
