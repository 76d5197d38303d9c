"""Lookahead Decoding: what is drafted, what is asked for beside it, and what each budget leaves of both."""

from __future__ import annotations

import numpy as np
import pytest

from oracles import hashed, play
from rounds import start
from speculant.core.drafter import Budget, SessionRequest
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UsageError
from speculant.drafters.parallel.lookahead import LookaheadDrafter, LookaheadSession, LookaheadSettings
from trees import paths_of

FREE = Budget(nodes=64, depth=1000, queries=1000)
PROMPT = [5, 9, 14, 3, 5, 9, 14, 2, 5, 9]


def opened(prompt: list[int] = PROMPT, *, seed: int = 0, **settings: object) -> LookaheadSession:
    """Return a session."""
    drafter = LookaheadDrafter(settings=LookaheadSettings(**settings))  # type: ignore[arg-type]
    session = drafter.open(SessionRequest(prompt=start(prompt).prompt, seed=np.random.SeedSequence(seed)))
    assert isinstance(session, LookaheadSession)
    return session


def test_the_text_is_that_of_plain_decoding_in_fewer_passes() -> None:
    """A text in which tokens depend on those right before them is found ahead by the window."""
    after = hashed(37, 1)
    text, rounds = play(opened(), PROMPT, after, 60, FREE)
    assert all(after(text[:place]) == text[place] for place in range(len(PROMPT), len(text)))
    assert len(text) - len(PROMPT) > 1.5 * len(rounds)
    assert any(len(done.tokens) == 5 for done in rounds)  # a whole n-gram, and the target's own token


def test_drafts_are_the_ngrams_of_the_pool() -> None:
    """The candidates of the root become one tree, shared beginnings once, at most G of them."""
    session = opened([1, 2, 3, 1, 2, 4, 1, 5, 6, 1], ngram=3, candidates=2, from_prompt=True)
    assert set(paths_of(session.propose(FREE))) == {(5,), (5, 6), (2,), (2, 4)}
    session = opened([1, 2, 3, 1, 2, 4, 1, 5, 6, 1], ngram=3, from_prompt=True)
    assert set(paths_of(session.propose(FREE))) == {(5,), (5, 6), (2,), (2, 3), (2, 4)}
    assert not len(opened([1, 2, 3, 1, 2, 4, 1], ngram=3).propose(FREE))


def test_the_output_feeds_the_pool_where_asked_to() -> None:
    """With `from_prompt` n-grams of the output are found like those of the prompt, also across their border."""
    after = {7: 1, 1: 2, 2: 3, 3: 7}
    text, _ = play(opened([7], ngram=3, from_prompt=True), [7], lambda text: after[text[-1]], 3, FREE)
    assert text[:5] == [7, 1, 2, 3, 7]
    session = opened([7], ngram=3, from_prompt=True)
    play(session, [7], lambda text: after[text[-1]], 3, Budget(nodes=1, depth=1))
    assert (1, 2) in paths_of(session.propose(FREE)) or session.propose(FREE).tokens.tolist()[:1] == [1]


def test_without_a_draft_there_is_no_window() -> None:
    """A round of 0 nodes costs what plain decoding costs; any other runs the window, also with nothing to draft."""
    session = opened()
    assert not len(session.propose(Budget(nodes=0, depth=9, queries=1000)).queries)
    assert not len(session.propose(Budget(nodes=9, depth=0, queries=1000)).queries)
    alone = session.propose(Budget(nodes=1, depth=9, queries=1000))
    assert (len(alone), len(alone.queries)) == (0, 9)


def test_the_window_is_left_out_where_positions_end() -> None:
    """Guards models' position tables: the deepest row is within the budget, or there is none."""
    session = opened()
    play(session, PROMPT, hashed(37, 1), 5, FREE)
    deepest = int(session.propose(FREE).queries.depths().max())
    assert deepest == 7 + 5 - 3
    for room in range(12):
        queries = session.propose(Budget(nodes=4, depth=50, queries=room)).queries
        assert len(queries) == (27 if room >= deepest else 0)


def test_the_window_waits_through_rounds_without_it() -> None:
    """Its tokens stay what they were, and the n-grams in the pool too."""
    session, after = opened(), hashed(37, 1)
    play(session, PROMPT, after, 8, FREE)
    before, held = session.propose(FREE).queries, len(session._pool)
    play(session, PROMPT, after, 3, Budget(nodes=0, depth=9))
    assert (session.propose(FREE).queries.tokens == before.tokens).all()
    assert len(session._pool) == held > 0


def test_the_pool_is_bounded() -> None:
    """Guards memory on long outputs."""
    session = opened(pool=5, candidates=2)
    play(session, PROMPT, hashed(997, 2), 80, FREE)
    assert len(session._pool) <= 10


def test_the_seed_decides_the_first_guesses() -> None:
    """Equal seeds give equal windows, as several ranks of an engine need; they are tokens of the prompt."""
    same, other = (opened(seed=seed).propose(FREE).queries.tokens.tolist() for seed in (3, 4))
    assert same == opened(seed=3).propose(FREE).queries.tokens.tolist()
    assert same != other
    assert set(same) <= set(PROMPT)


def test_weights_follow_what_was_accepted() -> None:
    """Rates are counted also where candidates were not verified: the committed text shows which was right."""
    session = opened([1, 2, 3] * 4 + [1], ngram=3, from_prompt=True)
    before = session.propose(FREE).weights.tolist()
    play(session, [1, 2, 3] * 4 + [1], lambda text: text[-3], 12, Budget(nodes=0, depth=9))
    assert all(new > old for new, old in zip(session.propose(FREE).weights.tolist(), before, strict=True))


def test_what_the_target_is_asked_for() -> None:
    """The argmax at every row, and the rows of the largest window."""
    assert LookaheadDrafter().needs == RequestedOutputs(top_k=1, queries=27)


@pytest.mark.parametrize("name", ["window", "ngram", "candidates", "pool"])
def test_wrong_settings_are_refused(name: str) -> None:
    """Each message names what is allowed."""
    with pytest.raises(UsageError, match=f"{name}.* or more"):
        LookaheadSettings(**{name: 0})
