"""Drafting the tokens that a constraint forces, with the inner drafter's draft below them.

Where a grammar allows only one token, such as within the keys of a JSON schema, the target's masked distribution
consists of that token alone, so it is accepted whatever the model computes. Only such tokens are drafted, not forced
text, since several tokenizations may spell it. Forcing is described as "fast-forward tokens" by guidance (Microsoft,
2023) and as "jump forward" by SGLang (Zheng et al. 2024, arXiv 2312.07104, section 4); here it needs no change to the
round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from speculant.core.draft_filter import DraftFilter
from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.tree import ROOT, DraftTree, Int32
from speculant.core.wrapped_session import WrappedSession


class ForcedDrafter(Drafter):
    """Adds the tokens that constraints force to the drafts of a deterministic drafter."""

    def __init__(self, inner: Drafter) -> None:
        """Wrap a drafter whose sessions draft from text, since `propose_after` must be cheap."""
        self.inner = inner

    @property
    def needs(self) -> RequestedOutputs:
        return self.inner.needs

    def open(self, start: SessionRequest) -> Session:
        session = self.inner.open(start)
        return session if start.constraint is None else ForcedSession(session, start.constraint)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[Budget]) -> list[DraftTree]:
        free = [place for place, session in enumerate(sessions) if not isinstance(session, ForcedSession)]
        drafts = iter(self.inner.propose([sessions[place] for place in free], [budgets[place] for place in free]))
        return [
            session.propose(budget) if isinstance(session, ForcedSession) else next(drafts)
            for session, budget in zip(sessions, budgets, strict=True)
        ]


class ForcedSession(WrappedSession):
    """Session of a request with a constraint."""

    def __init__(self, inner: Session, constraint: DraftFilter) -> None:
        super().__init__(inner)
        self._constraint = constraint
        self._tokens: list[int] = []  # committed tokens

    def propose(self, budget: Budget) -> DraftTree:
        maximum = min(budget.nodes, budget.depth)
        chain = self._constraint.find_forced(self._tokens, maximum) if maximum > 0 else []
        if not chain:
            return self.inner.propose(budget)
        left = replace(budget, nodes=budget.nodes - len(chain), depth=budget.depth - len(chain))
        below = self.inner.propose_after(chain, left) if min(left.nodes, left.depth) > 0 else DraftTree.empty()
        return _join(chain, below)

    def observe(self, verified: Verified) -> None:
        self._tokens += verified.tokens.tolist()
        self.inner.observe(verified)

    def follow(self, tokens: Int32) -> None:
        self._tokens += tokens.tolist()
        self.inner.follow(tokens)


def _join(chain: Sequence[int], below: DraftTree) -> DraftTree:
    """Return a draft that continues a chain of certain tokens."""
    length = len(chain)
    parents = np.where(below.parents == ROOT, np.int32(length - 1), below.parents + np.int32(length))
    return DraftTree(
        np.concatenate([np.array(chain, np.int32), below.tokens]),
        np.concatenate([np.arange(-1, length - 1, dtype=np.int32), parents]),
        np.concatenate([np.ones(length, np.float32), below.weights]),
    )
