"""Method `none`: plain decoding in the same loop, the baseline of every comparison."""

from __future__ import annotations

from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.engine import NO_OUTPUTS, RequestedOutputs
from speculant.core.tree import DraftTree


class NoDrafter(Drafter):
    """Opens sessions that draft nothing."""

    @property
    def needs(self) -> RequestedOutputs:
        return NO_OUTPUTS

    def open(self, start: SessionRequest) -> Session:
        return EmptySession()


class EmptySession(Session):
    """Session of a request without drafts."""

    def propose(self, budget: Budget) -> DraftTree:
        return DraftTree.empty()

    def observe(self, verified: Verified) -> None:
        pass

    def close(self) -> None:
        pass
