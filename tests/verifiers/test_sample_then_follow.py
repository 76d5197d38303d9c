"""The accept rule: walks, and losslessness by exact enumeration of everything that can be drawn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from speculant.core.tree import DraftTree
from speculant.verifiers.sample_then_follow import sample_then_follow
from trees import make_tree, random_draft

VOCABULARY, LENGTH = 3, 4
Text = tuple[int, ...]
Drafting = Callable[[Text], DraftTree]


def walk(tree: DraftTree, answers: list[int], end: int | None = None) -> tuple[list[int], list[int], bool, list[int]]:
    """Follow the tree with scripted answers; return the rows asked for, too."""
    rows: list[int] = []

    def draw(row: int) -> tuple[int, bool]:
        rows.append(row)
        return answers[len(rows) - 1], answers[len(rows) - 1] == end

    return (*sample_then_follow(tree, draw), rows)


def test_follows_the_child_that_holds_the_token() -> None:
    """The walk goes from row to row along the target's tokens and ends where no child holds the next one."""
    tree = make_tree([1, 2, 1, 3, 2], [-1, -1, 1, 1, 3])
    assert walk(tree, [2, 3, 2, 7]) == ([1, 3, 4], [2, 3, 2, 7], False, [0, 2, 4, 5])
    assert walk(tree, [2, 2]) == ([1], [2, 2], False, [0, 2])
    assert walk(tree, [5]) == ([], [5], False, [0])


def test_without_a_draft_one_token_is_drawn() -> None:
    """Plain decoding is the same walk over no nodes."""
    assert walk(DraftTree.empty(), [4]) == ([], [4], False, [0])


def test_the_end_stops_the_walk_inside_the_draft() -> None:
    """Nothing is drawn after the end; the last token is the target's own even where the draft had it."""
    tree = make_tree([1, 9, 1], [-1, 0, 1])
    assert walk(tree, [1, 9], end=9) == ([0], [1, 9], True, [0, 1])


def test_the_first_of_equal_siblings_is_followed() -> None:
    """A drafter that lists a token twice under a node still gets a deterministic path."""
    assert walk(make_tree([1, 1, 2], [-1, -1, 0]), [1, 2, 0])[0] == [0, 2]


class BranchingError(Exception):
    """A draw that the script does not cover; carries the chances of each token."""


def replay(script: Text, chances: Callable[[Text], list[float]], drafting: Drafting) -> Text:
    """Run the rounds with scripted draws, LENGTH tokens long, and return what they committed."""
    drawn: list[int] = []
    committed: Text = ()
    ended = False
    while not ended:
        tree = drafting(committed)
        # What the target's pass holds at each row: the text before the round, then the row's own path.
        seen = [committed + tuple(tree.tokens[tree.path(row - 1)].tolist()) for row in range(len(tree) + 1)]

        def draw(row: int, seen: list[Text] = seen) -> tuple[int, bool]:
            if len(drawn) == len(script):
                raise BranchingError(chances(seen[row]))
            drawn.append(script[len(drawn)])
            return drawn[-1], len(drawn) == LENGTH

        path, tokens, ended = sample_then_follow(tree, draw)
        assert tokens[: len(path)] == tree.tokens[path].tolist()
        committed += tuple(tokens)
    return committed


def outcomes(chances: Callable[[Text], list[float]], drafting: Drafting) -> dict[Text, float]:
    """Return the exact distribution of the first LENGTH tokens, by running the rounds for every script of draws."""
    found: dict[Text, float] = {}
    scripts: list[tuple[Text, float]] = [((), 1.0)]
    while scripts:
        script, probability = scripts.pop()
        try:
            assert replay(script, chances, drafting) == script
        except BranchingError as branching:
            (law,) = branching.args
            scripts += [((*script, token), probability * law[token]) for token in range(VOCABULARY)]
        else:
            found[script] = probability
    return found


def fixed(tokens: list[int], parents: list[int]) -> Drafting:
    """Draft the same tree in every round."""
    return lambda _: make_tree(tokens, parents)


def changing(text: Text) -> DraftTree:
    """Draft another tree after every text, as drafters that learn do."""
    return random_draft(np.random.default_rng([len(text), *text]), 6, VOCABULARY)


@pytest.mark.parametrize(
    "drafting",
    [
        fixed([], []),
        fixed([1], [-1]),
        fixed([0, 1, 2], [-1, -1, -1]),
        fixed([2, 0, 1, 1], [-1, 0, 1, 2]),
        fixed([0, 1, 0, 2, 1], [-1, -1, 0, 0, 1]),
        fixed([0, 0, 1], [-1, -1, 0]),
        fixed([0, 1, 2] * 4, [-1, -1, -1, 0, 0, 0, 1, 1, 1, 2, 2, 2]),
        changing,
    ],
    ids=["none", "one", "wide", "chain", "mixed", "twins", "all", "changing"],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_lossless(drafting: Drafting, seed: int) -> None:
    """Whatever is drafted, each text comes out with exactly the target's probability."""
    table: dict[Text, list[float]] = {}
    for length in range(LENGTH):
        for text in itertools.product(range(VOCABULARY), repeat=length):
            law = np.random.default_rng([seed, length, *text]).dirichlet([0.7] * VOCABULARY)
            table[text] = law.tolist()
    found = outcomes(table.__getitem__, drafting)
    assert len(found) == VOCABULARY**LENGTH
    for text, probability in found.items():
        expected = math.prod(table[text[:i]][text[i]] for i in range(LENGTH))
        assert probability == pytest.approx(expected, abs=1e-12)
