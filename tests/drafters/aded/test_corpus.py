"""Counting n-grams against counting by hand."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rounds import budget
from speculant.core.errors import UnsupportedError
from speculant.drafters.aded.corpus import LONGEST_BIGRAM_ROW, TrigramCounter, count_trigrams
from speculant.drafters.aded.drafter import AdedDrafter, save_table
from speculant.drafters.aded.frozen import LONGEST_FROZEN_ROW, Frozen, thaw
from speculant.drafters.aded.rows import UNIT

VOCABULARY = 7
documents = st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=12), max_size=12)


def by_hand(texts: list[list[int]]) -> Counter[tuple[int, int, int]]:
    found: Counter[tuple[int, int, int]] = Counter()
    for text in texts:
        found.update(zip(text, text[1:], text[2:], strict=False))
        found.update((VOCABULARY, b, c) for b, c in pairwise(text))
    return found


def entries(table: Frozen) -> dict[tuple[int, int, int], float]:
    a, b, c, weight = thaw(table)
    return {(i, j, k): w / UNIT for i, j, k, w in zip(*(x.tolist() for x in (a, b, c, weight)), strict=True)}


@given(documents, st.integers(1, 40))
def test_counts_are_those_made_by_hand(texts: list[list[int]], chunk: int) -> None:
    """Whatever the chunk, every n-gram within a document is counted once each time, and none across documents."""
    counter = TrigramCounter(VOCABULARY, chunk=chunk)
    for text in texts:
        counter.add(text)
    table = counter.table()
    expected = by_hand(texts)
    assert entries(table) == pytest.approx(expected, rel=0.025), "weights are stored to 2 %"
    assert counter.trigrams == count_trigrams(table) == sum(a < VOCABULARY for a, _, _ in expected)
    assert counter.tokens == sum(map(len, texts))
    assert counter.floor == 0


def test_a_count_can_be_read_in_between() -> None:
    """Asking for the number of tri-grams does not disturb the counting."""
    counter = TrigramCounter(VOCABULARY)
    counter.add([1, 2, 3])
    assert counter.trigrams == 1
    counter.add(np.array([1, 2, 3, 4], np.int32))
    assert counter.trigrams == 2
    assert entries(counter.table())[1, 2, 3] == pytest.approx(2, rel=0.025)


def test_long_rows_keep_their_heaviest() -> None:
    """A row has a byte for its length; bi-gram rows, which follow every token, are shorter still."""
    counter = TrigramCounter(400)
    for c in range(300):
        for _ in range(1 + (c >= 200)):
            counter.add([1, 2, c])
    found = entries(counter.table())
    trigram_row = {c for a, b, c in found if (a, b) == (1, 2)}
    bigram_row = {c for a, b, c in found if (a, b) == (400, 2)}
    assert len(trigram_row) == LONGEST_FROZEN_ROW
    assert len(bigram_row) == LONGEST_BIGRAM_ROW
    assert set(range(200, 300)) <= trigram_row
    assert bigram_row == set(range(200, 264))


def test_the_rarest_are_dropped_where_room_is_short() -> None:
    """Memory is bounded by what is kept, and the counter owns up to the loss."""
    counter = TrigramCounter(5000, chunk=64, maximum=100)
    for i in range(0, 3000, 3):
        counter.add([i, i + 1, i + 2])
        counter.add([1, 2, 3, 4])
    assert counter.floor > 0
    assert counter.trigrams <= 100
    assert (1, 2, 3) in entries(counter.table())


def test_ids_outside_the_vocabulary_are_refused() -> None:
    """They would be packed into other ids' bits."""
    counter = TrigramCounter(VOCABULARY)
    for ids in ([1, 2, VOCABULARY], [-1, 2, 3]):
        with pytest.raises(ValueError, match="from 0 to 6"):
            counter.add(ids)
    assert counter.tokens == 0
    with pytest.raises(UnsupportedError, match="token ids below"):
        TrigramCounter(1 << 21)


def test_the_largest_vocabulary_fits() -> None:
    """Three ids of 21 bits, the mark of pairs among them, do not touch each other."""
    top = (1 << 21) - 1
    counter = TrigramCounter(top)
    counter.add([top - 1] * 3)
    assert set(entries(counter.table())) == {(top - 1, top - 1, top - 1), (top, top - 1, top - 1)}


def test_the_drafter_loads_it(tmp_path: Path) -> None:
    """What was counted is drafted, by the tri-gram where there is one and by the bi-gram elsewhere."""
    counter = TrigramCounter(VOCABULARY)
    for _ in range(3):
        counter.add([1, 2, 3])
    counter.add([4, 2, 5])
    save_table(tmp_path / "table", counter.table(), tokenizer="x", vocabulary=VOCABULARY)
    drafter = AdedDrafter(vocabulary=VOCABULARY, tokenizer="x")
    drafter.load(tmp_path / "table")
    assert drafter.search(4, 2, budget(1)).tokens.tolist() == [5]
    assert drafter.search(6, 2, budget(1)).tokens.tolist() == [3]
