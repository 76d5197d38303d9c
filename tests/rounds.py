"""What sessions are opened and asked with in tests."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from speculant.core.drafter import EMPTY_PATH, Budget, Session, SessionRequest, Verified
from speculant.core.tree import DraftTree


def start(tokens: Iterable[int]) -> SessionRequest:
    """Return the start of a greedy request with these tokens as its prompt."""
    return SessionRequest(prompt=tokens if isinstance(tokens, np.ndarray) else np.array(list(tokens), np.int32))


def budget(nodes: int, *, depth: int = 10_000, trees: bool = True) -> Budget:
    """Return a budget of so many nodes, of any depth that tests reach."""
    return Budget(nodes=nodes, depth=depth, trees=trees)


def commit(session: Session, *tokens: int) -> None:
    """Commit tokens to a session, without a draft."""
    session.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=np.array(tokens, np.int32)))
