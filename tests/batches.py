"""Batches of rows as engines show them, for tests of integrations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.engine import NO_OUTPUTS, RequestedOutputs
from speculant.core.tree import DraftTree
from speculant.integrations.drafting import RowDrafter
from speculant.integrations.load import chain_budget
from speculant.integrations.rows import EngineRow


class Recorder(Drafter):
    """Drafts what a rule says of a session's text, and remembers what its sessions saw.

    Attributes:
        sessions: all that were opened, in order.
    """

    def __init__(self, rule: Any = lambda text: [text[-1] + 1, text[-1] + 2]) -> None:
        self.rule = rule
        self.sessions: list[RecorderSession] = []

    @property
    def needs(self) -> RequestedOutputs:
        return NO_OUTPUTS

    def open(self, start: SessionRequest) -> Session:
        self.sessions.append(RecorderSession(self.rule, start))
        return self.sessions[-1]


class RecorderSession(Session):
    """A session of it.

    Attributes:
        start: what it was opened with.
        text: prompt and output.
        seen: what was observed.
        closed: how often it was closed.
    """

    def __init__(self, rule: Any, start: SessionRequest) -> None:
        self.rule, self.start = rule, start
        self.text: list[int] = start.prompt.tolist()
        self.seen: list[Verified] = []
        self.closed = 0

    def propose(self, budget: Budget) -> DraftTree:
        tokens = list(self.rule(self.text))[: budget.depth]
        return DraftTree.from_paths([tokens], [0.5]) if tokens else DraftTree.empty()

    def observe(self, verified: Verified) -> None:
        self.seen.append(verified)
        self.text += verified.tokens.tolist()

    def close(self) -> None:
        self.closed += 1


def row(text: Sequence[int], fresh: int = 1, maximum: int = 8, key: Any = None) -> EngineRow:
    """Return a row that shows a text whose last tokens are fresh."""
    return EngineRow(np.array(text, np.int32), fresh, maximum, key)


def row_drafter(drafter: Drafter, **options: Any) -> RowDrafter:
    """Return the drafts of a drafter for rows."""
    return RowDrafter(drafter, **{"vocabulary": 1000, "budget": chain_budget, "max_per_step": 256, **options})


def texts_of(drafter: Recorder) -> list[list[int]]:
    """Return the texts of all sessions that are open."""
    return [session.text for session in drafter.sessions if not session.closed]


def drafted(drafts: Iterable[DraftTree]) -> list[list[int]]:
    """Return the tokens of drafts."""
    return [draft.tokens.tolist() for draft in drafts]
