"""Growing the drafts of several requests at the same time, with one model pass per level for all of them.

A draft in progress is a generator: it yields the nodes it needs to be read and is sent the answer. Alone, each answer
is computed when it is needed; together, the answers that all drafts wait for are computed at once. A finished draft
drops out while the others continue.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from speculant.core.drafter import Budget
from speculant.core.tree import DraftTree

Answer = tuple[
    list[int], Tensor
]  # rows of the nodes that were read, and q [n, V] after them; for the root, [] and q [1, V]


@dataclass(frozen=True, slots=True)
class NodeReading:
    """A request to read nodes.

    Attributes:
        tokens: tokens of the nodes; empty to drop all rows and begin a draft.
        above: parent row of each, -1 for the root.
    """

    tokens: Sequence[int] = ()
    above: Sequence[int] = ()


Drafting = Generator[NodeReading, Answer, DraftTree]


class Readable(Protocol):
    """A text that can read nodes, such as `level_session.LevelText`."""

    def begin(self) -> Tensor:
        """Drop all rows of the draft; return q [1, V] after the root."""

    def read(self, tokens: Sequence[int], above: Sequence[int]) -> Answer:
        """Run n nodes below the given parent rows (-1: the root); return their rows and q [n, V] after them."""


class GrowingSession(Protocol):
    """A session whose drafts grow by readings of one text."""

    text: Any

    def drafting(self, budget: Budget) -> Drafting:
        """Return a draft in progress."""


def answer_alone(text: Readable, wanted: NodeReading) -> Answer:
    """Return the answer that a single draft waits for."""
    return text.read(wanted.tokens, wanted.above) if wanted.tokens else ([], text.begin())


def draft_alone(session: GrowingSession, budget: Budget) -> DraftTree:
    """Return the draft of one session."""
    drafting = session.drafting(budget)
    try:
        wanted = next(drafting)
        while True:
            wanted = drafting.send(answer_alone(session.text, wanted))
    except StopIteration as end:
        draft: DraftTree = end.value
        return draft


def draft_together(
    sessions: Sequence[GrowingSession],
    budgets: Sequence[Budget],
    answer: Callable[[list[Any], list[NodeReading]], list[Answer]],
) -> list[DraftTree]:
    """Return the drafts of several sessions.

    Args:
        sessions: at least one session.
        budgets: budget of each session.
        answer: returns the answers to several readings, given the texts.
    """
    drafts: list[DraftTree] = [DraftTree.empty()] * len(sessions)
    draftings = [session.drafting(budget) for session, budget in zip(sessions, budgets, strict=True)]
    waiting = dict[int, NodeReading]()

    def go_on(place: int, found: Answer | None) -> None:
        try:
            drafting = draftings[place]
            waiting[place] = next(drafting) if found is None else drafting.send(found)
        except StopIteration as end:
            drafts[place] = end.value

    for place in range(len(sessions)):
        go_on(place, None)
    while waiting:
        places, wanted = [*waiting], [*waiting.values()]
        waiting.clear()
        for place, found in zip(places, answer([sessions[place].text for place in places], wanted), strict=True):
            go_on(place, found)
    return drafts
