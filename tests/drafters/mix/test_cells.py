"""The table of rows agrees with a dict, grows without losing anything, and at its limit keeps what is used."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant.drafters.mix.cells import (
    HEAVIEST,
    MAX_TOKENS,
    PLACES,
    UNIT,
    Cells,
    blend,
    claim,
    find,
    grow_cells,
    new_cells,
    observe,
    read,
)

Row = list[tuple[int, int]]

CONTEXTS = np.random.default_rng(0).integers(1, 1 << 64, 60_000, np.uint64)
MEMORY = 8 * UNIT
BUCKET = 4 * 4 * PLACES  # bytes where rows have four entries


def row_of(cells: Cells, context: np.uint64) -> Row:
    """Return a context's tokens and weights, latest first; none if it is not there."""
    cell = find(cells, context)
    if cell < 0:
        return []
    tokens, weights = np.empty(24, np.int64), np.empty(24, np.int64)
    length = read(cells, cell, tokens, weights)
    return list(zip(tokens[:length].tolist(), weights[:length].tolist(), strict=True))


def observed(row: Row, token: int, memory: int, width: int) -> Row:
    """Return the row once a token was seen, the slow but obvious way."""
    total = sum(weight for _, weight in row)
    if total + UNIT > memory:
        row = [(other, max(1, weight * (memory - UNIT) // total)) for other, weight in row]
    weight = sum(weight for other, weight in row if other == token) + UNIT
    others = [entry for entry in row if entry[0] != token]
    return [(token, min(weight, HEAVIEST)), *others[: width - 1]]


def blended(row: Row, ids: list[int], gains: list[int], memory: int, width: int) -> Row:
    """Return the row once gains were added, the slow but obvious way."""
    total, kept = sum(weight for _, weight in row), memory - sum(gains)
    if total > kept:
        row = [(token, max(1, weight * kept // total)) for token, weight in row]
    for token, gain in zip(reversed(ids), reversed(gains), strict=True):
        if gain:
            weight = min(HEAVIEST, gain + sum(weight for other, weight in row if other == token))
            others = [entry for entry in row if entry[0] != token]
            heavier = [entry for entry in others if entry[1] > weight]
            row = [*heavier, (token, weight), *others[len(heavier) :]]
    return row[:width]


def learned(cells: Cells, contexts: np.ndarray) -> None:
    """Let one token follow each context."""
    for context in contexts:
        observe(cells, context, np.int32(context % 1000), MEMORY)


def test_nothing_is_known_at_first() -> None:
    """An empty table holds no rows, whatever its size."""
    for limit in (0, 100, 1 << 20):
        cells = new_cells(4, limit, first_bits=9)
        assert all(row_of(cells, context) == [] for context in CONTEXTS[:50])
        assert grow_cells(cells, limit) is cells
        assert cells.entries.nbytes <= max(limit, BUCKET)


@pytest.mark.parametrize("width", [4, 24])
@given(
    seen=st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0, 1, 2, 3, 4, 5, 6, MAX_TOKENS - 1])), max_size=150),
    memory=st.integers(1, 14).map(lambda observations: observations * UNIT),
)
def test_rows_are_those_of_a_dict(width: int, seen: list[tuple[int, int]], memory: int) -> None:
    """Latest first, with decayed counts; rows longer than their width lose what was seen longest ago."""
    cells, rows = new_cells(width, 1 << 20, first_bits=6), dict[int, Row]()
    for context, token in seen:
        observe(cells, CONTEXTS[context], np.int32(token), memory)
        rows[context] = observed(rows.get(context, []), token, memory, width)
    for context in range(6):
        assert row_of(cells, CONTEXTS[context]) == rows.get(context, [])
    assert cells.facts[0] == len(rows)


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=200),
    st.sampled_from([4, 24]),
    st.integers(1, 14).map(lambda observations: observations * UNIT),
)
def test_decay_holds_the_total(tokens: list[int], width: int, memory: int) -> None:
    """A row's weights add up to its memory at most; the one that each entry keeps may come on top."""
    cells = new_cells(width, 1 << 20, first_bits=6)
    for token in tokens:
        observe(cells, CONTEXTS[0], np.int32(token), memory)
        row = row_of(cells, CONTEXTS[0])
        assert row[0][0] == token
        assert min(weight for _, weight in row) >= 1
        assert UNIT <= sum(weight for _, weight in row) <= memory + width


@pytest.mark.parametrize("width", [4, 24])
@given(
    visits=st.lists(
        st.tuples(
            st.lists(st.integers(0, 40), min_size=1, max_size=8, unique=True),
            st.lists(st.integers(0, 30), min_size=8, max_size=8),
        ),
        max_size=30,
    ),
    memory=st.integers(8, 15).map(lambda observations: observations * UNIT),
)
def test_blended_rows(width: int, visits: list[tuple[list[int], list[int]]], memory: int) -> None:
    """Gains are added to what decayed, heaviest first; what gains nothing does not enter."""
    cells, row = new_cells(width, 1 << 20, first_bits=6), Row()
    tokens, weights = np.empty(width + 8, np.int64), np.empty(width + 8, np.int64)
    for ids, room in visits:
        gains = room[: len(ids)]
        blend(cells, CONTEXTS[0], np.array(ids, np.int32), np.array(gains), memory, tokens, weights)
        row = blended(row, ids, gains, memory, width) if any(gains) else row
        assert row_of(cells, CONTEXTS[0]) == row
        assert [weight for _, weight in row] == sorted((weight for _, weight in row), reverse=True)


def test_gains_of_nothing_take_no_room() -> None:
    """A target too unsure for any gain leaves the table as it is."""
    cells, room = new_cells(4, 1 << 20, first_bits=6), np.empty(6, np.int64)
    for _ in range(3):
        blend(cells, CONTEXTS[0], np.array([5, 6], np.int32), np.zeros(2, np.int64), MEMORY, room, room.copy())
    assert cells.facts[0] == 0
    assert find(cells, CONTEXTS[0]) == -1


def test_use_moves_a_cell_forward() -> None:
    """In a full bucket a newcomer enters in the middle and pushes out the last; one in use passes those before it."""
    cells = new_cells(4, BUCKET, first_bits=6)
    learned(cells, CONTEXTS[:PLACES])
    assert [find(cells, context) for context in CONTEXTS[:PLACES]] == list(range(PLACES))
    assert [claim(cells, CONTEXTS[PLACES - 1]) for _ in range(9)] == [6, 5, 4, 3, 2, 1, 0, 0, 0]
    assert find(cells, CONTEXTS[PLACES - 2]) == PLACES - 1
    new = CONTEXTS[PLACES : PLACES + 7]
    learned(cells, new)
    kept = [CONTEXTS[PLACES - 1], *CONTEXTS[:2], *new[:1:-1]]
    assert [find(cells, context) for context in kept] == list(range(PLACES))
    assert row_of(cells, kept[0]) == [(int(kept[0]) % 1000, UNIT)]
    assert [find(cells, context) for context in (CONTEXTS[2], CONTEXTS[PLACES - 2], new[1])] == [-1] * 3
    assert cells.facts[0] == PLACES


@pytest.mark.parametrize("width", [4, 24])
@pytest.mark.parametrize("first_bits", [0, 3])
def test_growth_keeps_every_row(width: int, first_bits: int) -> None:
    """After each doubling a context finds the row it found before, and none where it found none."""
    cells, limit = new_cells(width, 1 << 22, first_bits=first_bits), 1 << 22
    doublings = 0
    for begin in range(0, 6000, 25):
        learned(cells, CONTEXTS[begin : begin + 25])
        larger = grow_cells(cells, limit)
        if larger is not cells:
            sample = CONTEXTS[: begin + 25 : 1 + begin // 1000]
            assert larger.entries.nbytes == 2 * cells.entries.nbytes
            assert [row_of(larger, context) for context in sample] == [row_of(cells, context) for context in sample]
            doublings += 1
        cells = larger
    assert doublings > 5
    held = np.count_nonzero(cells.entries[:, :, 0])
    assert 0.9 * 6000 < held <= cells.facts[0] <= 6000


def test_at_the_limit_what_is_used_stays() -> None:
    """A flood of contexts that come once takes no more bytes than allowed, and no room from those that come again.

    Those that are new when the table is full find their place, too.
    """
    limit = 70_000
    cells = new_cells(4, limit, first_bits=3)
    early, late, flood = CONTEXTS[:500], CONTEXTS[500:1000], CONTEXTS[1000:]
    for turn, part in enumerate(np.array_split(flood, 80)):
        for regulars in (early, late)[: 1 + turn // 40]:
            learned(cells, regulars)
        learned(cells, part)
        cells = grow_cells(cells, limit)
        assert cells.entries.nbytes <= limit
    assert cells.entries.nbytes > limit / 2
    kept = [sum(find(cells, context) >= 0 for context in group) / len(group) for group in (early, late, flood[30_000:])]
    assert kept[0] > 0.95
    assert kept[1] > 0.8
    assert kept[2] < 0.1
