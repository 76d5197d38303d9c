"""Aggressive decoding: following the prompt, leaving it, and finding back."""

from __future__ import annotations

import numpy as np
import pytest

from rounds import budget, commit, start
from speculant.core.drafter import Session
from speculant.core.engine import RequestedOutputs
from speculant.drafters.copying.sad import SadDrafter, SadSettings
from tables import ids


def open_session(prompt: list[int], **settings: int) -> Session:
    """Begin a request."""
    return SadDrafter(settings=SadSettings(**settings)).open(start(ids(prompt)))


def naive_place(prompt: list[int], output: list[int]) -> int | None:
    """Return the place in the prompt that comes next, by definition."""
    place: int | None = 0
    for i, token in enumerate(output):
        if place is not None and place < len(prompt) and prompt[place] == token:
            place += 1
            continue
        place = None
        for size in range(1, i + 2):
            suffix = output[i + 1 - size : i + 1]
            found = [p for p in range(len(prompt) - size + 1) if prompt[p : p + size] == suffix]
            if len(found) == 1:
                place = found[0] + size
            if len(found) < 2:
                break
    return place


def test_the_prompt_is_taken_for_the_output() -> None:
    """Everything is drafted from the first token on, as a chain, and the pointer moves with the output."""
    session = open_session([1, 2, 3, 4, 5])
    tree = session.propose(budget(64))
    assert (tree.tokens.tolist(), tree.parents.tolist()) == ([1, 2, 3, 4, 5], [-1, 0, 1, 2, 3])
    commit(session, 1, 2)
    assert session.propose(budget(2)).tokens.tolist() == [3, 4]
    commit(session, 3, 4, 5)
    assert len(session.propose(budget(64))) == 0
    assert SadDrafter().needs == RequestedOutputs()


def test_a_correction() -> None:
    """After a token that departs nothing is drafted, until one comes that stands in the prompt once."""
    session = open_session([10, 11, 12, 13, 11, 14, 15])
    commit(session, 10, 99)
    assert len(session.propose(budget(64))) == 0
    commit(session, 11)
    assert len(session.propose(budget(64))) == 0
    commit(session, 14)
    assert session.propose(budget(64)).tokens.tolist() == [15]


def test_two_tokens_can_align_where_one_cannot() -> None:
    """The shortest end of the output that is unique in the prompt counts."""
    session = open_session([10, 11, 12, 13, 11, 14, 15])
    commit(session, 99, 13, 99, 13, 11)
    assert session.propose(budget(64)).tokens.tolist() == [14, 15]
    longer = open_session([10, 11, 12, 13, 11, 14, 15], shortest=2)
    commit(longer, 99, 13)
    assert len(longer.propose(budget(64))) == 0
    commit(longer, 11)
    assert longer.propose(budget(64)).tokens.tolist() == [14, 15]


def test_against_the_definition() -> None:
    """Random prompts over few tokens, outputs that follow them by fits and starts."""
    random = np.random.default_rng(3)
    followed = 0
    for _ in range(40):
        prompt = random.integers(0, 5, 30).tolist()
        session, output = open_session(prompt), []
        for _ in range(40):
            place = naive_place(prompt, output)
            tokens = session.propose(budget(64)).tokens.tolist()
            assert tokens == ([] if place is None else prompt[place:])
            followed += bool(tokens) and len(output) > 5
            agreed = tokens[: int(random.integers(0, 3))] if random.random() < 0.7 else []
            step = [*agreed, int(random.integers(0, 6))]
            commit(session, *step)
            output += step
    assert followed > 50


def test_an_empty_prompt_and_no_budget() -> None:
    """Nothing to repeat, or nowhere to put it."""
    session = open_session([])
    commit(session, 1)
    assert len(session.propose(budget(8))) == 0
    assert len(open_session([1, 2]).propose(budget(0))) == 0
    assert len(open_session([1, 2, 3], drafted=2).propose(budget(8))) == 2


def test_weights_follow_what_was_right() -> None:
    """Weights are low at the start, rise with a long agreement, and fall along the chain."""
    session = open_session(list(range(100)))
    first = session.propose(budget(64))
    assert first.weights[0] == pytest.approx(0.05)
    commit(session, *range(60))
    later = session.propose(budget(64))
    assert later.weights[0] > 0.95
    assert (np.diff(later.weights) <= 0).all()
