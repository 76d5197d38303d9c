"""Drafts of what a constraint forces, above those of another drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from speculant.core.draft_filter import DraftFilter
from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.tree import Bool, DraftTree
from speculant.drafters.copying.lookup import LookupDrafter
from speculant.drafters.forced import ForcedDrafter

PROMPT = np.array([3, 4, 5, 6, 7, 3, 4], np.int32)


class Forces(DraftFilter):
    """Forces 8 and 3 behind every 4, and records what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], int]] = []

    def allowed(self, tree: DraftTree, tokens: Sequence[int]) -> Bool:
        return np.ones(len(tree), bool)

    def find_forced(self, tokens: Sequence[int], maximum: int) -> list[int]:
        self.asked.append((list(tokens), maximum))
        return [8, 3][:maximum] if tokens and tokens[-1] == 4 else []


def opened(constraint: DraftFilter | None) -> tuple[Drafter, Session]:
    """Return a drafter and a session whose first token is 4."""
    drafter = ForcedDrafter(LookupDrafter(vocabulary=16))
    session = drafter.open(replace(SessionRequest(prompt=PROMPT[:-1]), constraint=constraint))
    session.observe(Verified(tree=DraftTree.empty(), path=np.empty(0, np.int32), tokens=np.array([4], np.int32)))
    return drafter, session


def test_the_inner_draft_hangs_below_what_is_forced() -> None:
    """Guards the shape: the chain first with weight 1, then what the drafter expects after it."""
    constraint = Forces()
    drafter, session = opened(constraint)
    [draft] = drafter.propose([session], [Budget(nodes=6, depth=6, trees=False)])
    assert draft.tokens.tolist()[:3] == [8, 3, 4]
    assert draft.weights.tolist()[:2] == [1, 1]
    assert draft.parents.tolist() == list(range(-1, len(draft) - 1))
    assert constraint.asked == [([4], 6)]


def test_budgets_hold() -> None:
    """Guards sizing: nodes and levels of the chain count, and where no draft is asked for there is none."""
    _, session = opened(Forces())
    for nodes in range(5):
        for depth in range(5):
            draft = session.propose(Budget(nodes=nodes, depth=depth))
            assert len(draft) <= nodes
            assert draft.depths().max(initial=0) <= depth
    assert session.propose(Budget(nodes=1, depth=5)).tokens.tolist() == [8]
    assert len(session.propose(Budget(nodes=0, depth=5))) == 0


def test_others_draft_as_ever() -> None:
    """Guards requests of one batch: without a constraint, or where nothing is forced, the inner draft stays."""
    drafter, free = opened(None)
    _, forced = opened(Forces())
    budget = Budget(nodes=4, depth=4)
    expected = LookupDrafter(vocabulary=16).open(SessionRequest(prompt=PROMPT)).propose(budget)
    drafts = drafter.propose([free, forced, free], [budget] * 3)
    assert drafts[0].tokens.tolist() == drafts[2].tokens.tolist()
    assert drafts[1].tokens.tolist()[:2] == [8, 3]
    assert len(drafts[0]) >= len(expected) > 0
    forced.observe(Verified(tree=drafts[1], path=np.array([0, 1], np.int32), tokens=np.array([8, 3, 5], np.int32)))
    assert forced.propose(budget).tokens.tolist()[:1] != [8]
