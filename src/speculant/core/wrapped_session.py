"""A session around another one: all that a subclass does not change is the inner session's."""

from __future__ import annotations

from collections.abc import Sequence

from speculant.core.drafter import Budget, Session, Verified
from speculant.core.tree import DraftTree, Float64, Int32


class WrappedSession(Session):
    """Forwards everything to the inner session.

    Attributes:
        inner: the inner session.
    """

    def __init__(self, inner: Session) -> None:
        self.inner = inner

    def propose(self, budget: Budget) -> DraftTree:
        return self.inner.propose(budget)

    def propose_after(self, tokens: Sequence[int], budget: Budget) -> DraftTree:
        return self.inner.propose_after(tokens, budget)

    def empty_draft(self) -> DraftTree:
        return self.inner.empty_draft()

    def observe(self, verified: Verified) -> None:
        self.inner.observe(verified)

    def follow(self, tokens: Int32) -> None:
        self.inner.follow(tokens)

    def forecast(self, nodes: int) -> Float64 | None:
        return self.inner.forecast(nodes)

    @property
    def selective(self) -> bool:
        return self.inner.selective

    def unread(self) -> int:
        return self.inner.unread()

    def close(self) -> None:
        self.inner.close()
