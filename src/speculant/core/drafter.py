"""The contract between a drafter and the decoding loop.

A drafter lives as long as the process and owns the memory; a session lives as long as one request. Drafts
are deterministic given the input and the seed, since engines with several ranks must draft the same tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from speculant.core.tree import DraftTree, Float32, Int32

MEMORY_LIMIT = 256 << 20  # bytes that a drafter's memory may take if the user does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a drafter wants back from the target's pass.

    Attributes:
        top_k: how many of the target's best tokens at every row, rejected nodes too; 0 for none.
        hidden_layers: the layers whose hidden states it reads.
    """

    top_k: int = 0
    hidden_layers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verified:
    """What happened in a round.

    Attributes:
        tree: the draft that was verified, N nodes.
        path: Int32[A], the accepted nodes in order.
        tokens: Int32[A + 1], what was committed: the accepted ones, then the target's own. Where the text ends
            inside the draft its last token is the target's own, so this holds there too.
        top_ids: Int32[N + 1, k], the target's best tokens after each row (row 0: the root), or None.
        top_logits: Float32[N + 1, k], their logits, or None.
        hidden: Float32[N + 1, L, D], or None.
    """

    tree: DraftTree
    path: Int32
    tokens: Int32
    top_ids: Int32 | None = None
    top_logits: Float32 | None = None
    hidden: Float32 | None = None


class Session(Protocol):
    """Drafts for one request."""

    def propose(self, max_nodes: int) -> DraftTree:
        """Return at most `max_nodes` nodes, best first."""

    def observe(self, verified: Verified) -> None:
        """Learn from a round; called once after prefill too, with an empty tree and the first token."""

    def close(self) -> None:
        """End the request; what it taught stays in the drafter's memory."""


class Drafter(Protocol):
    """Owns what was learned over all requests; safe to share between threads."""

    @property
    def needs(self) -> Needs: ...

    def open(self, prompt: Int32, *, target: Any = None, seed: int = 0) -> Session:
        """Begin a request with prompt Int32[T]; `target` is lent to drafters that draft with it."""

    def save(self, path: Path) -> None:
        """Write the memory so that a crash leaves the old file or the new one, never half of one."""

    def load(self, path: Path) -> None:
        """Replace the memory by the file's."""


class NoDrafter:
    """Method `none`: plain decoding by the same loop, the baseline of every comparison."""

    needs = Needs()

    def open(self, prompt: Int32, *, target: Any = None, seed: int = 0) -> Session:
        return self

    def propose(self, max_nodes: int) -> DraftTree:
        return DraftTree.empty()

    def observe(self, verified: Verified) -> None:
        pass

    def close(self) -> None:
        pass

    def save(self, path: Path) -> None:
        """Write nothing: plain decoding learns nothing."""

    def load(self, path: Path) -> None:
        """Read nothing: plain decoding has no memory."""


EMPTY_PATH: Int32 = np.empty(0, np.int32)
