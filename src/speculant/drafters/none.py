"""Method `none`: plain decoding by the same loop, the baseline of every comparison."""

from __future__ import annotations

from speculant.core.drafter import Budget, Drafter, Session, Start, Verified
from speculant.core.engine import NO_NEEDS, Needs
from speculant.core.tree import DraftTree


class NoDrafter(Drafter):
    """Opens sessions that draft nothing."""

    @property
    def needs(self) -> Needs:
        return NO_NEEDS

    def open(self, start: Start) -> Session:
        return EmptySession()


class EmptySession(Session):
    """A request without drafts."""

    def propose(self, budget: Budget) -> DraftTree:
        return DraftTree.empty()

    def observe(self, verified: Verified) -> None:
        pass

    def close(self) -> None:
        pass
