"""The contract of a drafter: its constants, its batched proposal and its optional memory."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from rounds import budget, start
from speculant.core.drafter import EMPTY_PATH, Budget, Drafter, Loadable, Persistent, Session, SessionRequest, Verified
from speculant.core.engine import NO_OUTPUTS, RequestedOutputs
from speculant.core.tree import DraftTree


class Counting(Drafter):
    """Opens sessions that draft their prompt's first token as often as they may."""

    @property
    def needs(self) -> RequestedOutputs:
        return NO_OUTPUTS

    def open(self, start: SessionRequest) -> Session:
        return Repeating(int(start.prompt[0]))


class Repeating(Session):
    """Drafts a chain of one token."""

    def __init__(self, token: int) -> None:
        self._token = token

    def propose(self, budget: Budget) -> DraftTree:
        return DraftTree.from_paths([[self._token] * min(budget.nodes, budget.depth)])

    def observe(self, verified: Verified) -> None:
        raise AssertionError("a proposal observes nothing")

    def close(self) -> None:
        pass


class Loading(Counting):
    """Can start from a file."""

    def load(self, path: Path) -> None:
        pass


class Saving(Loading):
    """Can be saved."""

    def save(self, path: Path) -> None:
        path.touch()


def test_the_batched_proposal_asks_each_session_for_its_budget() -> None:
    """Drafters without a batched pass need not write one."""
    drafter = Counting()
    sessions = [drafter.open(start([token])) for token in (3, 4)]
    drafts = drafter.propose(sessions, [budget(2), budget(5, depth=1)])
    assert [tree.tokens.tolist() for tree in drafts] == [[3, 3], [4]]


def test_persistence_is_a_matter_of_methods() -> None:
    """A drafter is persistent if it can save and load, and loadable if it can load."""
    found = [(isinstance(each, Loadable), isinstance(each, Persistent)) for each in (Counting(), Loading(), Saving())]
    assert found == [(False, False), (True, False), (True, True)]


def test_the_empty_path() -> None:
    """Rounds without an accepted node share a path of no nodes of the right type."""
    assert (EMPTY_PATH.shape, EMPTY_PATH.dtype) == ((0,), np.int32)


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("speculant.core.drafter", "Start", "SessionRequest"),
        ("speculant.core.engine", "Needs", "RequestedOutputs"),
        ("speculant.core.engine", "NO_NEEDS", "NO_OUTPUTS"),
    ],
)
def test_names_that_drafters_used_before(module: str, old: str, new: str) -> None:
    """Guards drafters that were written against earlier names, which are told the new ones."""
    found = import_module(module)
    with pytest.warns(DeprecationWarning, match=f"{old} is now called {new}"):
        assert getattr(found, old) is getattr(found, new)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        found.nothing  # noqa: B018
