"""The suffix automaton against searching by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from speculant.drafters.suffix.automaton import PLACE, ROOT, SuffixAutomaton, advance
from speculant.drafters.suffix.history import END
from tables import ids

texts = st.lists(st.integers(0, 3), max_size=40)


def automaton_of(*documents: list[int], step: int = 50) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    for document in documents:
        for at in range(0, len(document), step):
            assert automaton.extend(ids(document[at : at + step])) == len(document[at : at + step])
        automaton.finish()
    return automaton


def ends(text: list[int], pattern: list[int]) -> list[int]:
    """Return where a pattern ends in a text."""
    n = len(pattern)
    return [i + n - 1 for i in range(len(text) - n + 1) if text[i : i + n] == pattern]


def longest(documents: list[list[int]], context: list[int]) -> int:
    """Return the length of the context's longest suffix that a document holds."""
    known = (n for n in range(len(context), 0, -1) if any(ends(document, context[-n:]) for document in documents))
    return next(known, 0)


@given(st.lists(texts, max_size=4), texts, st.integers(1, 7))
def test_the_longest_suffix_is_followed(documents: list[list[int]], context: list[int], step: int) -> None:
    """Token by token the match is the longest there is, and its place is one where it ends."""
    automaton = automaton_of(*documents, step=step)
    log, state, length = automaton.text.tolist(), ROOT, 0
    for at in range(len(context)):
        state, length = advance(automaton.sam, state, length, ids(context[at : at + 1]))
        assert length == longest(documents, context[: at + 1])
        if length:
            assert int(automaton.sam.states[state, PLACE]) in ends(log, context[at + 1 - length : at + 1])
        else:
            assert state == ROOT


@given(texts, st.integers(1, 7))
def test_the_requests_own_repetition(text: list[int], step: int) -> None:
    """The longest suffix that occurred before, and where it did last, are known after every token."""
    automaton = SuffixAutomaton()
    for at in range(0, len(text), step):
        automaton.extend(ids(text[at : at + step]))
        seen = text[: at + step]
        state, length = automaton.repeated
        assert length == max([n for n in range(1, len(seen)) if len(ends(seen, seen[-n:])) > 1], default=0)
        if length:
            assert automaton.sam.states[state, PLACE] == ends(seen, seen[-length:])[-2]


@given(texts, texts, texts)
def test_a_match_outlives_growth(first: list[int], second: list[int], context: list[int]) -> None:
    """A session's place stays right while other requests are learned, which splits states."""
    automaton = automaton_of(first)
    state, length = advance(automaton.sam, ROOT, 0, ids(context))
    automaton.extend(ids(second))
    automaton.finish()
    state, after = advance(automaton.sam, state, length, ids([]))
    assert after == length
    if length:
        log = automaton.text.tolist()
        assert int(automaton.sam.states[state, PLACE]) in ends(log, context[len(context) - length :])


def test_sizes_are_linear() -> None:
    """At most two states and three edges a token, and the arrays are not much larger than needed."""
    random = np.random.default_rng(0)
    for text in (random.integers(0, 2, 3000), random.integers(0, 30_000, 3000), np.zeros(3000)):
        automaton = automaton_of(text.astype(np.int32).tolist())
        states, edges, _ = automaton.sam.used
        assert states <= 2 * 3000 + 1
        assert edges <= 3 * 3000 + 1


def test_a_continuation_ends_with_its_document() -> None:
    """What follows in the log is another request's."""
    automaton = automaton_of([1, 2, 3, 4], [5, 6])
    state, _ = advance(automaton.sam, ROOT, 0, ids([2]))
    assert automaton.continuation(state, 9).tolist() == [3, 4]
    assert automaton.continuation(state, 1).tolist() == [3]
    state, _ = advance(automaton.sam, ROOT, 0, ids([6]))
    assert automaton.continuation(state, 9).tolist() == []


def test_the_limit_is_kept() -> None:
    """A full automaton takes no more and returns where it stopped."""
    automaton = SuffixAutomaton(limit=100_000)
    text = np.random.default_rng(0).integers(0, 1000, 5000).astype(np.int32)
    taken = automaton.extend(text)
    automaton.finish()
    assert 500 < taken < 5000
    assert automaton.nbytes <= 100_000
    assert automaton.text.tolist() == [*text[:taken].tolist(), END]
