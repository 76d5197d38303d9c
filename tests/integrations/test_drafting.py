"""Drafts for rows: limits, load, faults, the same on every rank, and what is learned."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batches import Recorder, RecorderSession, drafted, row, row_drafter
from speculant.core.drafter import Drafter, Session, SessionRequest, Verified
from speculant.core.tree import DraftTree
from speculant.integrations.drafting import follow_tokens
from speculant.integrations.load import bound_drafts, tree_budget
from speculant.registry import BuildContext, build_drafter
from tables import ids


def test_drafts_are_never_longer_than_allowed() -> None:
    """A row near the end of the model's positions gets less, and none where nothing fits."""
    rows = row_drafter(Recorder(lambda _text: range(20)))
    found = rows.step([row([1, 5], maximum=8), row([2, 5], maximum=3), row([3, 5], maximum=0), row([4, 5], maximum=-1)])
    assert [len(draft) for draft in found] == [8, 3, 0, 0]


def test_a_step_drafts_so_much_together() -> None:
    """Under load the tokens of the largest weights are kept, as chains, and what was cut is not taken for drafted."""
    drafter = Recorder(lambda _text: range(100, 108))
    rows = row_drafter(drafter, max_per_step=20)
    found = rows.step([row([i, 5]) for i in range(10)])
    assert sum(len(draft) for draft in found) == 20
    assert {len(draft) for draft in found} == {2}
    rows.step([row([0, 5, 100, 101, 102], fresh=3)])
    assert drafter.sessions[0].seen[-1].path.tolist() == [0, 1]
    assert len(drafter.sessions[0].seen[-1].tree) == 2


def test_the_most_probable_tokens_are_kept() -> None:
    """Where not all fit, weights decide across requests; a part of a draft is a draft."""
    first = DraftTree.from_paths([[1, 2, 3]], [0.9])
    second = DraftTree(ids([4, 5, 6]), ids([-1, 0, 1]), np.array([0.95, 0.5, 0.2], np.float32))
    assert drafted(bound_drafts([first, second], 4)) == [[1, 2, 3], [4]]
    assert drafted(bound_drafts([first, second], 0)) == [[], []]
    assert bound_drafts([first, second], 6) == [first, second]
    tree = DraftTree.from_paths([[1, 2], [3, 4]])
    assert [len(part) for part in bound_drafts([tree, first], 5)] == [4, 1]


def test_improbable_tokens_are_left_out() -> None:
    """Tokens below the bound are not drafted, nor what follows them, however much room there is."""
    rows = row_drafter(Recorder(lambda _text: range(8)), min_probability=0.6)
    assert drafted(rows.step([row([1, 5])])) == [[]]
    draft = DraftTree(ids([4, 5, 6]), ids([-1, 0, 1]), np.array([0.95, 0.2, 0.1], np.float32))
    assert drafted(bound_drafts([draft], 9, minimum=0.3)) == [[4]]
    assert drafted(bound_drafts([draft], 9, minimum=1.0)) == [[]]


def test_acceptance_of_trees() -> None:
    """The path down a tree that committed tokens follow, without the last one."""
    tree = DraftTree.from_paths([[1, 2, 3], [1, 4], [5]])
    assert follow_tokens(tree, ids([1, 4, 9])).tolist() == [0, 3]
    assert follow_tokens(tree, ids([5])).tolist() == []
    assert follow_tokens(tree, ids([5, 7])).tolist() == [4]
    assert follow_tokens(tree, ids([1, 2, 3, 8])).tolist() == [0, 1, 2]
    assert row_drafter(Recorder(), budget=tree_budget).step([row([1, 5])])[0].tokens.tolist() == [6, 7]


class Faulty(Drafter):
    """Fails for requests whose prompt begins with a token of the given set, at the given place."""

    def __init__(self, place: str, bad: set[int]) -> None:
        self.place, self.bad, self.good = place, bad, Recorder()

    @property
    def needs(self) -> Any:
        return self.good.needs

    def open(self, start: SessionRequest) -> Session:
        bad = int(start.prompt[0]) in self.bad
        if bad and self.place == "open":
            raise RuntimeError("open")
        self.good.open(start)
        session = self.good.sessions[-1]
        return FaultySession(session, self.place) if bad else session


class FaultySession(Session):
    """Fails in one of its methods."""

    def __init__(self, session: RecorderSession, place: str) -> None:
        self.session, self.place, self.observed = session, place, 0

    def propose(self, budget: Any) -> DraftTree:
        if self.place == "propose":
            raise RuntimeError("propose")
        if self.place == "token":
            return DraftTree.from_paths([[5000]])
        return self.session.propose(budget)

    def observe(self, verified: Verified) -> None:
        self.observed += 1
        if self.place == "observe" and self.observed > 1:
            raise RuntimeError("observe")
        self.session.observe(verified)

    def close(self) -> None:
        if self.place == "close":
            raise RuntimeError("close")


@pytest.mark.parametrize("place", ["open", "propose", "token", "observe", "close"])
def test_faults_cost_drafts_only(place: str, caplog: pytest.LogCaptureFixture) -> None:
    """A failing request is decoded without drafts; the others draft on; it is logged once."""
    rows = row_drafter(Faulty(place, {7, 8}), patience=1)
    for step in range(4):
        more = list(range(10, 11 + step))
        found = rows.step([row([1, *more]), row([7, *more]), row([8, *more])])
        assert len(found[0]) == 2
    if place != "close":
        assert [len(draft) for draft in found] == [2, 0, 0]
    for step in range(4, 8):
        rows.step([row([1, *range(10, 11 + step)])])
    assert rows.faults >= 2
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1


def test_faults_of_the_keeping_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even an error in here costs drafts only: the engine gets none in that step, and drafts afterwards."""
    rows = row_drafter(Recorder())
    rows.step([row([1, 5])])
    with monkeypatch.context() as patched:
        patched.setattr(rows._requests, "match", lambda _rows: 1 / 0)
        assert drafted(rows.step([row([1, 5, 6]), row([2, 5])])) == [[], []]
    assert drafted(rows.step([row([1, 5, 6, 7])])) == [[8, 9]]


@pytest.mark.parametrize("method", ["mix", "aded", "suffix"])
def test_ranks_draft_the_same(method: str) -> None:
    """Two instances that are shown the same steps draft the same, token for token."""
    random = np.random.default_rng(3)
    ranks = [row_drafter(build_drafter(method, BuildContext(vocabulary=1000)), max_per_step=12) for _ in range(2)]
    texts = [random.integers(0, 5, 6).tolist() for _ in range(4)]
    some = 0
    for _ in range(40):
        for text in texts:
            text += random.integers(0, 5, random.integers(1, 4)).tolist()
        order = random.permutation(4)
        found = [drafted(rank.step([row(texts[i], fresh=1) for i in order])) for rank in ranks]
        assert found[0] == found[1]
        some += sum(map(len, found[0]))
    assert some > 40


@pytest.mark.parametrize("method", ["mix", "aded", "suffix"])
def test_requests_learn_from_each_other(method: str, tmp_path: Path) -> None:
    """What one request committed is drafted for the next, and after a restart from the saved memory."""
    text = np.random.default_rng(1).integers(0, 900, 80).tolist()
    drafter = build_drafter(method, BuildContext(vocabulary=1000, tokenizer="t"))
    rows = row_drafter(drafter, patience=0)
    for end in range(10, 80):
        rows.step([row(text[:end])])
    rows.finish()
    drafter.save(tmp_path / "memory")  # type: ignore[attr-defined]
    again = build_drafter(method, BuildContext(vocabulary=1000, tokenizer="t"))
    again.load(tmp_path / "memory")  # type: ignore[attr-defined]
    for each in (drafter, again):
        (found,) = drafted(row_drafter(each).step([row(text[20:50])]))
        assert found[:3] == text[50:53]
