"""Prompt lookup: what is copied, from where, and how sure it is."""

from __future__ import annotations

import numpy as np
import pytest

from rounds import budget, commit, start
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UsageError
from speculant.drafters.copying.lookup import LookupDrafter, LookupSettings
from tables import ids
from trees import paths_of


def drafter(**settings: int) -> LookupDrafter:
    """Return a drafter for 1000 token ids."""
    return LookupDrafter(vocabulary=1000, settings=LookupSettings(**settings))


def test_the_longest_match_counts() -> None:
    """Three tokens that agree beat one that is more recent."""
    session = drafter(copied=2).open(start([1, 2, 3, 50, 51, 3, 60, 61, 1, 2, 3]))
    assert session.propose(budget(8)).tokens.tolist() == [50, 51]


def test_the_most_recent_of_equals_counts() -> None:
    """Matches beyond three tokens count as equally long, as published; a setting changes that."""
    text = ids([8, 1, 2, 3, 50, 9, 1, 2, 3, 60, 8, 1, 2, 3])
    assert drafter(copied=1).open(start(text)).propose(budget(8)).tokens.tolist() == [60]
    assert drafter(copied=1, longest=4).open(start(text)).propose(budget(8)).tokens.tolist() == [50]


def test_the_published_draft() -> None:
    """A chain of ten tokens."""
    tree = drafter().open(start([*range(100, 130), 100])).propose(budget(64))
    assert tree.tokens.tolist() == list(range(101, 111))
    assert tree.parents.tolist() == list(range(-1, 9))
    assert drafter().needs == RequestedOutputs()


def test_nothing_matches() -> None:
    """Without a match of the shortest length nothing is drafted, nor from texts too short to hold one."""
    assert len(drafter().open(start([1, 2, 3])).propose(budget(8))) == 0
    assert len(drafter(shortest=2).open(start([1, 2, 3, 9, 3])).propose(budget(8))) == 0
    for text in ([], [5]):
        session = drafter().open(start(ids(text)))
        assert len(session.propose(budget(8))) == 0
        commit(session, 5, 5)
        assert session.propose(budget(2)).tokens.tolist() == [5, 5]


def test_the_output_is_searched_too() -> None:
    """What was committed can be copied in the next round."""
    session = drafter(copied=3).open(start([1, 2]))
    commit(session, 70, 71, 72)
    commit(session, 70)
    assert session.propose(budget(8)).tokens.tolist() == [71, 72, 70]


def test_further_matches_branch() -> None:
    """Branches begin with different tokens, the most recent of a kind, and the budget takes the likeliest nodes."""
    text = ids([1, 2, 50, 9, 2, 60, 9, 2, 50, 9, 3, 2, 70, 1, 2])
    tree = drafter(branches=3, copied=2).open(start(text)).propose(budget(64))
    assert set(paths_of(tree)) == {(50,), (50, 9), (60,), (60, 9), (70,), (70, 1)}
    assert tree.children(-1)[0] == 0
    assert tree.tokens[0] == 50
    assert len(drafter(branches=2, copied=2).open(start(text)).propose(budget(64))) == 4
    assert (np.diff(tree.weights) <= 0).all()
    assert tree.weights[tree.children(-1)].sum() <= 1
    assert paths_of(drafter(branches=3, copied=2).open(start(text)).propose(budget(4))) == pytest.approx(
        paths_of(tree.head(4))
    )


def test_weights_follow_what_was_right() -> None:
    """Copies that keep being right grow sure, those that keep being wrong are doubted."""
    text = ids([*range(100, 400), 100])
    good, bad = drafter().open(start(text)), drafter().open(start(text))
    for at in range(101, 391, 10):
        good.propose(budget(10))
        commit(good, *range(at, at + 10))
        bad.propose(budget(10))
        commit(bad, 999, at)
    assert good.propose(budget(1)).weights[0] > 0.95
    assert bad.propose(budget(1)).weights[0] < 0.1
    assert drafter().open(start(text)).propose(budget(1)).weights[0] == pytest.approx(1.1 / 3)


def test_the_same_input_drafts_the_same() -> None:
    """Random texts give the same trees again, each within its budget, best nodes first."""
    text = np.random.default_rng(0).integers(0, 20, 400).astype(np.int32)
    runs = []
    for _ in range(2):
        session = drafter(branches=4).open(start(text[:100]))
        drafts = []
        for at in range(100, 400, 3):
            tree = session.propose(budget(at % 20))
            assert len(tree) == len(paths_of(tree)) <= at % 20
            drafts.append(paths_of(tree))
            commit(session, *text[at : at + 3].tolist())
        runs.append(drafts)
    assert runs[0] == runs[1]


@pytest.mark.parametrize("settings", [{"copied": 0}, {"branches": 0}, {"shortest": 0}])
def test_settings_that_make_no_sense(settings: dict[str, int]) -> None:
    """Numbers that would draft nothing are refused."""
    with pytest.raises(UsageError, match="1 or more"):
        LookupSettings(**settings)
