"""The table as it lies on disk finds what was put in, small and close enough."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from speculant.drafters.aded.frozen import (
    LONGEST_FROZEN_ROW,
    Frozen,
    copy_frozen_row,
    count_frozen_bytes,
    decode_table,
    empty_frozen,
    freeze,
    heaviest_rows,
    thaw,
)
from speculant.drafters.aded.rows import LONGEST_ROW, MAX_VOCABULARY, NONE
from tables import Row

VOCABULARY = 6
Rows = dict[tuple[int, int], dict[int, int]]
TABLES = st.dictionaries(
    st.tuples(st.integers(0, VOCABULARY), st.integers(0, VOCABULARY - 1)),
    st.dictionaries(st.integers(0, VOCABULARY - 1), st.integers(1, 5000), min_size=1),
    max_size=42,
)


def frozen(rows: Rows, vocabulary: int = VOCABULARY) -> Frozen:
    """Freeze rows; those of the context (vocabulary, b) are bi-grams."""
    entries = [(a, b, c, weight) for (a, b), row in rows.items() for c, weight in row.items()]
    columns = np.array(entries, np.int64).reshape(-1, 4).T
    return freeze(*columns, vocabulary=vocabulary)


def row_in(
    base: Frozen, a: int, b: int, *, prior: int = 1 << 40, normalised: bool = False, longest: int = LONGEST_ROW
) -> Row:
    """Return a row of the table, in its order."""
    tokens, weights = np.empty(LONGEST_ROW, np.int64), np.empty(LONGEST_ROW, np.int64)
    n = copy_frozen_row(base, a, b, prior, normalised, longest, tokens, weights)
    return list(zip(tokens[:n].tolist(), weights[:n].tolist(), strict=True))


def coded(weight: int) -> int:
    """Return a weight as one byte keeps it."""
    return int(decode_table()[round(16 * np.log2(weight))])


@given(TABLES)
def test_lookups(rows: Rows) -> None:
    """Every context gives its row, heaviest first, and every other context nothing; bi-grams are found by NONE."""
    base = frozen(rows)
    for a in range(VOCABULARY + 1):
        for b in range(VOCABULARY):
            found = row_in(base, NONE if a == VOCABULARY else a, b)
            assert dict(found) == {c: coded(weight) for c, weight in rows.get((a, b), {}).items()}
            assert [c for c, _ in found] == [c for c, _ in sorted(rows.get((a, b), {}).items(), key=heaviest)]
    assert row_in(base, 0, VOCABULARY) == row_in(base, 0, MAX_VOCABULARY - 1) == []


def heaviest(entry: tuple[int, int]) -> tuple[int, int]:
    """Order successors by weight, equal ones by id."""
    return -entry[1], entry[0]


@given(TABLES)
@example({(context // VOCABULARY, context % VOCABULARY): {0: 1} for context in range(16)})  # checkpoints fit just
def test_thaw_is_the_inverse(rows: Rows) -> None:
    """Columns come back with coded weights, and freezing them again gives the same arrays."""
    base = frozen(rows)
    columns = thaw(base)
    found: Rows = {}
    for a, b, c, weight in zip(*(column.tolist() for column in columns), strict=True):
        found.setdefault((a, b), {})[c] = weight
    assert found == {key: {c: coded(weight) for c, weight in row.items()} for key, row in rows.items()}
    again = freeze(*columns, vocabulary=VOCABULARY)
    assert sorted(found) == list(found)
    assert all(np.array_equal(one, other) for one, other in zip(again[:3], base[:3], strict=True))
    assert np.array_equal(again.checkpoint, base.checkpoint)
    assert base.nbytes == count_frozen_bytes(len(columns[0]), len(found), VOCABULARY)


def test_checkpoints() -> None:
    """Rows of all lengths are found behind any number of others, at and around every 16th context."""
    random = np.random.default_rng(0)
    rows: Rows = {
        (int(key) // 100, int(key) % 100): {
            int(c): int(random.integers(1, 99)) for c in random.choice(100, int(random.integers(1, 30)), replace=False)
        }
        for key in random.choice(10_000, 1000, replace=False)
    }
    base = frozen(rows, 100)
    assert len(base.checkpoint) == 63
    for (a, b), row in rows.items():
        assert dict(row_in(base, a, b)) == {c: coded(weight) for c, weight in row.items()}


def test_error_of_the_weight_code() -> None:
    """One byte keeps a weight to 3 %, and to one unit where that is less."""
    weight = np.arange(1, 60_001)
    _, _, c, found = thaw(freeze(weight % 1000, weight, weight, weight, vocabulary=1000))
    error = np.abs(found - c)
    assert ((error <= 0.03 * c) | (error <= 1)).all()
    assert (found[c <= 16] == c[c <= 16]).all()


def test_a_row_too_heavy_for_the_code_keeps_its_proportions() -> None:
    """A corpus may count more than a byte can hold; the row is scaled down as a whole."""
    base = frozen({(1, 2): {3: 3_000_000, 4: 1_000_000, 5: 1}})
    found = dict(row_in(base, 1, 2))
    assert found[3] / found[4] == pytest.approx(3, rel=0.05)
    assert 50_000 < found[3] + found[4] < 65_536
    assert found[5] == 1


def test_long_rows_keep_their_heaviest() -> None:
    """A row's length is one byte, so 255 successors are kept, the heaviest."""
    base = frozen({(1, 2): dict(enumerate(range(1, 301)))}, 300)
    assert [c for c, _ in row_in(base, 1, 2)] == list(range(299, 299 - LONGEST_FROZEN_ROW, -1))


def test_prior_and_longest() -> None:
    """A row counts for at most the prior, as a whole and before it is cut; lighter ones as they are, or as much."""
    base = frozen({(1, 2): {0: 800, 1: 400, 2: 200, 3: 1}, (1, 3): {4: 7}})
    assert sum(weight for _, weight in row_in(base, 1, 2, prior=140)) == pytest.approx(140, abs=4)
    assert row_in(base, 1, 2, prior=140)[-1] == (3, 1)
    assert row_in(base, 1, 2, prior=140, longest=2) == row_in(base, 1, 2, prior=140)[:2]
    assert row_in(base, 1, 3, prior=140) == [(4, 7)]
    assert row_in(base, 1, 3, prior=140, normalised=True) == [(4, 140)]


def test_the_empty_table() -> None:
    """Without a corpus nothing is found anywhere."""
    base = empty_frozen()
    assert row_in(base, 0, 0) == row_in(base, NONE, 5) == row_in(base, MAX_VOCABULARY - 1, 0) == []
    assert [len(column) for column in thaw(base)] == [0] * 4


def test_the_largest_ids() -> None:
    """Three bytes hold every id of the largest vocabulary."""
    maximum = MAX_VOCABULARY - 1
    base = freeze(*(np.array([value]) for value in (maximum, maximum, maximum, 64)), vocabulary=MAX_VOCABULARY)
    assert row_in(base, maximum, maximum) == [(maximum, 64)]
    assert row_in(base, NONE, maximum) == []


def test_bytes_per_successor() -> None:
    """With rows as short as those of language a successor takes at most 8 bytes on disk."""
    random = np.random.default_rng(1)
    text = random.zipf(1.3, 200_000) % 5000
    columns = np.unique(np.stack([text[:-2], text[1:-1], text[2:]]), axis=1)
    base = freeze(*columns, np.ones(columns.shape[1], np.int64), vocabulary=5000)
    assert base.nbytes == sum(array.nbytes for array in base[:-1])
    assert base.nbytes <= 8 * columns.shape[1]


def test_heaviest_rows() -> None:
    """Whole rows are kept, the heaviest chosen ones first, as many as fit and ties no more than fit."""
    rows: Rows = {(0, b): {1: 100, 2: 10 * b} for b in range(1, 6)}
    base = frozen(rows)
    _, b, _, _ = thaw(base)
    chosen = b != 5
    a_row = 4 * 2 + 5.25

    def kept(room: float) -> list[int]:
        return b[heaviest_rows(base, chosen, room)].tolist()

    assert kept(2 * a_row) == [3, 3, 4, 4]
    assert kept(2 * a_row - 1) == [4, 4]
    assert kept(-5) == []
    assert kept(1000) == [1, 1, 2, 2, 3, 3, 4, 4]
    equal = frozen({(0, b): {1: 64} for b in range(6)})
    assert heaviest_rows(equal, np.ones(6, bool), 3 * 9.25).sum() == 3
    assert len(heaviest_rows(empty_frozen(), np.empty(0, bool), 100)) == 0
