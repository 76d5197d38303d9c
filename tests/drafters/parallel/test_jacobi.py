"""Jacobi decoding: iterates are those of the method, fixed points are accepted whole, variants keep their blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles import Next, argmaxes, hashed, play, verify
from rounds import budget, start
from speculant.core.drafter import Session
from speculant.core.errors import UsageError
from speculant.core.tree import DraftTree
from speculant.drafters.parallel.jacobi import JacobiDrafter, JacobiSettings

PROMPT = [5, 9, 14, 3]


def opened(prompt: list[int] = PROMPT, **settings: object) -> Session:
    """Return a session after its prompt was read."""
    return JacobiDrafter(vocabulary=40, settings=JacobiSettings(**settings)).open(start(prompt))  # type: ignore[arg-type]


def plain(prompt: list[int], after: Next, tokens: int) -> list[int]:
    text = [*prompt]
    for _ in range(tokens):
        text.append(after(text))
    return text


@given(st.integers(1, 3), st.integers(1, 9), st.sampled_from(["pj", "pgj", "hgj"]))
def test_the_text_is_that_of_plain_decoding(order: int, nodes: int, variant: str) -> None:
    """Guards the iterates' places: a guess that is a position off would be accepted only by chance, but never lost."""
    after = hashed(37, order)
    text, rounds = play(opened(variant=variant, block=4), PROMPT, after, 12, budget(nodes))
    assert text == plain(PROMPT, after, len(text) - len(PROMPT))
    assert all(len(done.tree) <= nodes for done in rounds)


def test_iterates_are_those_of_jacobis_method() -> None:
    """Every guess is the argmax that the pass before returned at the row before it, shifted by what was committed."""
    after, session, text = hashed(37, 2), opened(fill=0), [*PROMPT]
    session.observe(verify(DraftTree.empty(), text, after))
    text.append(after(text))
    guesses = [0] * 8  # of the next positions
    for _ in range(6):
        tree = session.propose(budget(8))
        assert tree.tokens.tolist() == guesses
        assert tree.parents.tolist() == list(range(-1, 7))
        done = verify(tree, text, after)
        improved = argmaxes(tree, text, after)
        session.observe(done)
        text += done.tokens.tolist()
        guesses = [*improved[len(done.tokens) :], *[0] * len(done.tokens)][:8]


def test_a_token_that_follows_from_its_own_place_takes_two_passes() -> None:
    """Where no token depends on the one before, one pass finds all and the next accepts all."""
    text, rounds = play(opened(fill=0), PROMPT, lambda text: 3 * len(text) % 40, 2, budget(12))
    assert [len(done.path) for done in rounds] == [0, 12]
    assert text == [*PROMPT, *(3 * place % 40 for place in range(4, 19))]


@given(st.integers(0, 12))
def test_a_fixed_point_is_accepted_whole(nodes: int) -> None:
    """Perfect guesses, here a text that repeats the prompt, are accepted to the last one in the first pass."""
    after: Next = lambda text: PROMPT[len(text) % len(PROMPT)]  # noqa: E731
    _, [done] = play(opened(), PROMPT, after, 1, budget(nodes))
    assert len(done.tree) == len(done.path) == nodes


def test_guesses_that_no_pass_reached_are_kept() -> None:
    """Guards drafts of which only a part was verified: rows that were not run have no argmax."""
    after, session = hashed(37, 2), opened()
    session.observe(verify(DraftTree.empty(), PROMPT, after))
    text = [*PROMPT, after(PROMPT)]
    session.observe(verify(session.propose(budget(12)), text, after))
    text.append(after(text))
    before = session.propose(budget(11)).tokens.tolist()
    done = verify(session.propose(budget(11)).head(3), text, after)
    session.observe(done)
    committed = len(done.tokens)
    assert session.propose(budget(11)).tokens.tolist()[4 - committed : 11 - committed] == before[4:]


def test_without_argmaxes_the_guesses_only_move_on() -> None:
    """Guards recorded outputs, which have no logits."""
    session = opened()
    for _ in range(3):
        before = session.propose(budget(6)).tokens.tolist()
        session.observe(replace(verify(session.propose(budget(6)), PROMPT, hashed(37, 1)), top_ids=None))
        assert session.propose(budget(6)).tokens.tolist()[:5] == before[1:]


def test_blocks_are_settled_one_after_the_other() -> None:
    """A draft of `pgj` never leaves its block; that of `pj` goes as far as the budget."""
    after = hashed(37, 1)
    for block in (2, 5):
        done = 1
        for each in play(opened(variant="pgj", block=block), PROMPT, after, 30, budget(50))[1]:
            assert len(each.tree) == block - done % block - 1
            done += len(each.tokens)
    assert all(len(each.tree) == 50 for each in play(opened(), PROMPT, after, 3, budget(50))[1])


def test_the_hybrid_ends_in_plain_decoding() -> None:
    """After `length` tokens `hgj` drafts nothing, and no draft reaches beyond."""
    done = 1
    for each in play(opened(variant="hgj", block=4, length=9), PROMPT, hashed(37, 1), 20, budget(50))[1]:
        assert len(each.tree) == max(0, min(4 - done % 4, 9 - done) - 1)
        done += len(each.tokens)


def test_weights_follow_what_was_accepted() -> None:
    """Where guesses that passes returned again are right they weigh more, and more than fresh ones."""
    session = opened(fill=0)
    fresh = float(session.propose(budget(1)).weights[0])
    play(session, PROMPT, lambda text: len(text) % 40, 21, budget(6))  # the last pass confirmed none
    assert float(session.propose(budget(1)).weights[0]) > 0.5 > fresh


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"variant": "jp"}, "'pj', 'pgj'"),
        ({"block": 1}, "2 or more"),
        ({"length": -1}, "0 tokens or more"),
        ({"fill": 40}, "0 to 39"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], match: str) -> None:
    """Each message names what is allowed."""
    with pytest.raises(UsageError, match=match):
        opened(**settings)
