"""What followed the last token earlier in a request: against a search through the whole text."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mixes import VOCABULARY, drafter
from rounds import budget, commit, start
from speculant.drafters.mix.history import NEVER, OCCURRENCES, History, add_use, followers
from tables import ids


def history(text: list[int], extra: int = 3) -> History:
    """Return the history of a text with room for more behind it."""
    last_use, links = np.full(10, NEVER, np.int32), np.zeros(len(text) + extra, np.int32)
    for i, token in enumerate(text):
        add_use(last_use, links, token, i)
    return History(ids([*text, *[9] * extra]), len(text), last_use, links)


def found(text: list[int], token: int) -> dict[int, int]:
    """Return the followers of a token with their weights, in order."""
    tokens, weights = np.zeros((2, OCCURRENCES), np.int64), np.zeros((2, OCCURRENCES), np.int64)
    length = followers(history(text), token, 8, tokens, weights, 1)
    return dict(zip(tokens[1, :length].tolist(), weights[1, :length].tolist(), strict=True))


@given(st.lists(st.integers(0, 4), max_size=120), st.integers(0, 5))
def test_followers_are_those_of_the_latest_occurrences(text: list[int], token: int) -> None:
    """Each once, the latest first, with as many observations as among the latest sixteen; never what lies behind."""
    expected: dict[int, int] = {}
    for i in [i for i in range(len(text) - 2, -1, -1) if text[i] == token][:OCCURRENCES]:
        expected[text[i + 1]] = expected.get(text[i + 1], 0) + 8
    assert list(found(text, token).items()) == list(expected.items())
    assert found(text, NEVER) == {}


def test_a_request_knows_what_the_tables_have_forgotten() -> None:
    """A follower from the beginning of a request is drafted although other requests have filled the row since."""
    held = drafter()
    session = held.open(start([5, 700, *range(10, 40)]))
    for token in range(100, 160):
        other = held.open(start([5, token]))
        commit(other, token + 1)
    commit(session, 5)
    assert 700 in session.propose(budget(40)).tokens
    assert 700 not in held.open(start([5])).propose(budget(40)).tokens


def test_long_requests_keep_their_links() -> None:
    """The arrays grow with the text, and hypothetical text leaves no trace."""
    session = drafter().open(start([1, 2]))
    for token in range(3, 700):
        commit(session, token, token, 999 - token % 2)
    before = session.propose(budget(20)).tokens.tolist()
    session.propose_after(list(range(900)), budget(20))
    assert session.propose(budget(20)).tokens.tolist() == before
    for beyond in (VOCABULARY, -1):
        assert not len(session.propose_after([3, beyond], budget(20)))
