"""A drafter that drafts what it is told to, and recordings to play it on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from speculant.bench.replay.traces import Recording
from speculant.core.drafter import Needs, Verified
from speculant.core.tree import DraftTree


def recording(output: Sequence[int], category: str = "a", prompt: Sequence[int] = (1,), **recorded: Any) -> Recording:
    """Return a recording of those ids."""
    yields = {name: np.array(each, np.int32) for name, each in recorded.items()}
    return Recording(np.array(prompt, np.int32), np.array(output, np.int32), category, yields)


class Scripted:
    """Drafts the same tree every round and remembers what it was shown."""

    needs = Needs()
    memory_bytes = 7

    def __init__(self, tree: DraftTree) -> None:
        self.tree = tree
        self.prompts: list[list[int]] = []
        self.seen: list[list[int]] = []
        self.closed = 0

    def open(self, prompt: Any, *, target: Any = None, seed: int = 0) -> Scripted:
        """Begin a request."""
        self.prompts.append(prompt.tolist())
        return self

    def propose(self, max_nodes: int) -> DraftTree:
        """Return the tree."""
        return self.tree.head(max_nodes)

    def observe(self, verified: Verified) -> None:
        """Remember the tokens."""
        self.seen.append(verified.tokens.tolist())

    def close(self) -> None:
        """Count."""
        self.closed += 1

    def save(self, path: Path) -> None:
        """Write nothing."""

    def load(self, path: Path) -> None:
        """Read nothing."""
