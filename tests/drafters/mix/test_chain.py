"""Chains of `mix`: what is drafted where the target verifies no trees."""

from __future__ import annotations

import numpy as np

from mixes import check, drafter, language
from rounds import budget, commit, start


def test_a_repetition_is_followed_to_its_end() -> None:
    """A text that repeats is drafted as far as asked, token for token."""
    text = language(0, 60)
    session = drafter().open(start(np.tile(text, 4)))
    assert session.propose(budget(20, trees=False)).tokens.tolist() == text[:20].tolist()


def test_chains_are_as_long_as_asked_for() -> None:
    """Nodes and depth both limit them; each node follows the one before it, and the next is no more probable."""
    session = drafter().open(start(language(1, 2000)))
    for nodes, depth in ((0, 8), (1, 8), (8, 8), (64, 8), (8, 3), (30, 40)):
        chain = session.propose(budget(nodes, depth=depth, trees=False))
        check(chain, min(nodes, depth))
        assert chain.parents.tolist() == list(range(-1, min(nodes, depth) - 1))


def test_a_chain_begins_like_the_tree() -> None:
    """Its first token is the most probable one of all, with the probability that a tree's search finds."""
    held, text = drafter(), language(2, 400)
    session = held.open(start(text[:50]))
    same = 0
    for token in text[50:].tolist():
        tree, chain = session.propose(budget(8)), session.propose(budget(8, trees=False))
        same += tree.tokens[0] == chain.tokens[0] and tree.weights[0] == chain.weights[0]
        commit(session, token)
    assert same > 300  # elsewhere the best candidate is an old entry of a long row


def test_nothing_known_yet() -> None:
    """The first prompt of an empty memory yields no more than what it holds."""
    session = drafter().open(start([5]))
    assert set(session.propose(budget(4, trees=False)).tokens.tolist()) <= {5}
