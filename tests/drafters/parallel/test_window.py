"""The window of Lookahead Decoding: mask, positions and n-grams are the published ones."""

from __future__ import annotations

import numpy as np
import pytest

from oracles import argmaxes, hashed
from speculant.core.exports import ancestor_mask
from speculant.core.tree import ROOT, DraftTree
from speculant.drafters.parallel.window import LookaheadWindow, max_queries

SHAPES = [(2, 2), (5, 2), (2, 3), (5, 4), (7, 5), (3, 8)]
FIGURE = """
    1 .... ..... .....
    1 1... ..... .....
    1 11.. ..... .....
    1 111. ..... .....
    1 1111 ..... .....
    1 .... 1.... .....
    1 1... .1... .....
    1 11.. ..1.. .....
    1 111. ...1. .....
    1 1111 ....1 .....
    1 .... 1.... 1....
    1 1... .1... .1...
    1 11.. ..1.. ..1..
    1 111. ...1. ...1.
    1 1111 ....1 ....1
"""  # the lookahead branch of the paper's figure, for N = 4 and W = 5
POSITIONS = [0, 1, 2, 3, 4, 1, 2, 3, 4, 5, 2, 3, 4, 5, 6]


def filled(width: int, ngram: int) -> tuple[LookaheadWindow, list[int]]:
    """Return a window after as many passes as fill it, and the text so far."""
    window, text, after = LookaheadWindow(range(width + ngram - 3), width=width, ngram=ngram), [8], hashed(50, 2)
    for _ in range(ngram - 2):
        advance(window, text, after)
    return window, text


def advance(window: LookaheadWindow, text: list[int], after: object) -> list[tuple[int, ...]]:
    best = argmaxes(DraftTree.empty(queries=window.queries()), text, after)  # type: ignore[arg-type]
    ngrams = window.advance(text[-1], best[0], best[1:])
    text.append(best[0])
    return ngrams


def test_the_mask_of_the_papers_figure() -> None:
    """Guards who attends to whom, and where, in the published example."""
    tree = DraftTree.empty(queries=filled(5, 4)[0].queries())
    expected = [[cell == "1" for cell in line.replace(" ", "")] for line in FIGURE.split("\n") if line]
    assert ancestor_mask(tree).tolist() == expected
    assert [0, *tree.queries.depths().tolist()] == POSITIONS


@pytest.mark.parametrize(("width", "ngram"), SHAPES)
def test_mask_and_positions_of_any_window(width: int, ngram: int) -> None:
    """The row of level l in column c is at position c + l; it sees level 0 up to c, and its own column down to l."""
    window = LookaheadWindow(range(width + ngram - 3), width=width, ngram=ngram)
    text, after = [8], hashed(50, 2)
    for levels in [*range(1, ngram), ngram - 1]:
        columns = width + ngram - 1 - levels
        cells = [(level, column) for level in range(levels) for column in range(columns)]
        expected = [
            [(seen == 0 and other <= column) or (other == column and seen <= level) for seen, other in cells]
            for level, column in cells
        ]
        tree = DraftTree.empty(queries=window.queries())
        assert ancestor_mask(tree).tolist() == expected
        assert tree.queries.depths().tolist() == [level + column for level, column in cells][1:]
        assert window.depth == max(tree.queries.depths())
        assert len(tree.queries) <= max_queries(width, ngram)
        advance(window, text, after)


@pytest.mark.parametrize(("width", "ngram"), SHAPES)
def test_the_largest_window_is_announced(width: int, ngram: int) -> None:
    """The number of rows that sizing reckons with is reached, and not exceeded."""
    window, text = LookaheadWindow(range(width + ngram - 3), width=width, ngram=ngram), [8]
    sizes = []
    for _ in range(ngram + 1):
        sizes.append(len(window.queries()))
        advance(window, text, hashed(50, 2))
    assert max(sizes) == max_queries(width, ngram)
    assert sizes[-1] == width * (ngram - 1) - 1


@pytest.mark.parametrize(("width", "ngram"), SHAPES)
def test_ngrams_are_trajectories_of_jacobi_iterations(width: int, ngram: int) -> None:
    """Against a grid of tokens by iteration and position: iteration i + 1 at p + 1 is the argmax after i at p."""
    after, text, rounds = hashed(53, 3), [8], ngram + 4
    first = [(11 * place + 2) % 53 for place in range(width + ngram - 3)]
    window = LookaheadWindow(first, width=width, ngram=ngram)
    grid = {(0, place + 1): token for place, token in enumerate(first)}  # by iteration and position; the root is at 0
    for turn in range(rounds):
        grid |= {(iteration, turn): text[-1] for iteration in range(-ngram, rounds + ngram)}
        levels = min(turn + 1, ngram - 1)
        oldest, columns = turn + 1 - levels, width + ngram - 1 - levels
        for column in range(columns):
            level_0 = [grid[oldest, turn + other] for other in range(1, column + 1)]
            own = [grid[oldest + level, turn + column + level] for level in range(1, levels)]
            grid[turn + 1, turn + column + levels] = after([*text, *level_0, *own])
        full = levels == ngram - 1
        expected = [
            tuple(grid[oldest + level, turn + column + level] for level in range(ngram))
            for column in range(width if full else 0)
        ]
        assert advance(window, text, after) == expected


def test_columns_follow_their_own_rows() -> None:
    """Parents come first, and every row of level 1 and below hangs on the row above it."""
    queries = filled(7, 5)[0].queries()
    assert (queries.parents < np.arange(len(queries))).all()
    assert (queries.parents[:6] == np.arange(-1, 5)).all()
    assert queries.parents[6:13].tolist() == [ROOT, *range(6)]
    assert (queries.parents[13:] == np.arange(6, 20)).all()
