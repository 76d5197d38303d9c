"""The most used phrases of a memory, and what it has seen of a text."""

from __future__ import annotations

import numpy as np
import pytest

from speculant.core.drafter import Inspectable, SessionRequest
from speculant.drafters.mix.drafter import MixDrafter

TEXT = np.array([5, 6, 7, 8, 1, 5, 6, 7, 8, 2, 5, 6, 7, 8, 3, 5, 6, 7, 8, 4] * 2, np.int32)


def taught() -> MixDrafter:
    """Return a drafter that has read the text."""
    drafter = MixDrafter(vocabulary=50, memory_limit=1 << 20)
    assert isinstance(drafter, Inspectable)
    assert drafter.top_phrases(5) == []
    drafter.open(SessionRequest(prompt=TEXT))
    return drafter


def test_top_phrases_are_those_of_the_text() -> None:
    """Guards the search from the front: a pair goes on while one token mostly follows, and is listed once."""
    found = taught().top_phrases(5)
    assert found[0].tokens == (5, 6, 7, 8)
    assert found[0].uses >= 7
    assert {token for token, _ in found[0].following} <= {1, 2, 3, 4}
    assert all(phrase.tokens != (6, 7, 8) for phrase in found)
    assert len(taught().top_phrases(1)) == 1


def test_phrases_leave_out_special_tokens() -> None:
    """Guards `without`: no such token in a phrase, nor behind it."""
    found = taught().top_phrases(20, without={7})
    assert found
    assert not any(7 in phrase.tokens or 7 in dict(phrase.following) for phrase in found)


@pytest.mark.parametrize(
    ("tokens", "start", "share"),
    [([5, 6, 7, 8], 2, 1.0), ([5, 6, 9, 9], 2, 0.0), ([5, 6, 7, 9], 2, 0.5), ([5, 6, 7, 9], 4, 0.0)],
)
def test_seen_share_counts_what_followed_two_tokens(tokens: list[int], start: int, share: float) -> None:
    """Guards the measure of a text that the memory knows."""
    assert taught().seen_share(np.array(tokens, np.int32), start=start) == share
