"""Sessions around others forward all that they do not change."""

from __future__ import annotations

import inspect

import numpy as np

from speculant.core.drafter import Budget, Session, Verified
from speculant.core.tree import DraftTree, Float64, Int32
from speculant.core.wrapped_session import WrappedSession


class Inner(Session):
    """Answers unlike the defaults."""

    def __init__(self) -> None:
        self.calls = list[str]()

    def propose(self, budget: Budget) -> DraftTree:
        return DraftTree.from_paths([[1]])

    def propose_after(self, tokens: object, budget: Budget) -> DraftTree:
        return DraftTree.from_paths([[2]])

    def empty_draft(self) -> DraftTree:
        return DraftTree.from_paths([[3]])

    def observe(self, verified: Verified) -> None:
        self.calls.append("observe")

    def follow(self, tokens: Int32) -> None:
        self.calls.append("follow")

    def forecast(self, nodes: int) -> Float64:
        return np.ones(nodes)

    @property
    def selective(self) -> bool:
        return True

    def unread(self) -> int:
        return 9

    def close(self) -> None:
        self.calls.append("close")


def test_everything_is_forwarded() -> None:
    """Guards new members of `Session`: each is forwarded, none is the default's."""
    inner, budget = Inner(), Budget(nodes=1, depth=1)
    wrapped = WrappedSession(inner)
    tokens = np.array([1], np.int32)
    drafts = wrapped.propose(budget), wrapped.propose_after([1], budget), wrapped.empty_draft()
    assert [draft.tokens.tolist() for draft in drafts] == [[1], [2], [3]]
    wrapped.observe(Verified(tree=drafts[0], path=tokens, tokens=tokens))
    wrapped.follow(tokens)
    wrapped.close()
    assert inner.calls == ["observe", "follow", "close"]
    assert (wrapped.selective, wrapped.unread()) == (True, 9)
    assert len(wrapped.forecast(3)) == 3  # type: ignore[arg-type]
    public = {name for name, _ in inspect.getmembers(Session) if not name.startswith("_")}
    assert public <= set(vars(WrappedSession))
