"""Rows in their slots and blocks: none overwrites another, and a successor takes few bytes."""

from __future__ import annotations

import numpy as np
import pytest

from speculant.drafters.aded.rows import LONGEST_ROW, TAIL, UNIT, has_room, new_level
from speculant.drafters.aded.table import LearningRule
from tables import COUNTS, ids, row_of, table


def test_the_longest_row() -> None:
    """A row grows through all block sizes to 256 successors, then its lightest makes room."""
    held = table(COUNTS._replace(longest=LONGEST_ROW, memory=0))
    for token in [*range(300), 7]:
        held.learn(ids([1000, 1001, token]), 2)
    row = row_of(held, 1000, 1001)
    assert len(row) == LONGEST_ROW
    assert row == [(token, UNIT) for token in (7, *range(299, 44, -1))]


def test_freed_blocks_are_used_again() -> None:
    """A row that outgrows its block leaves it to the next row of that size."""
    held = table(LearningRule(gain=UNIT, ceiling=8191, memory=0, prior=0, longest=4, bigrams=False))
    for first, successors in ((10, 4), (20, 3), (30, 2), (40, 2)):
        for token in range(successors):
            held.learn(ids([first, first + 1, token]), 2)
    # The first two rows left blocks of 2 behind; the second and the third row took them.
    assert held.young.counts[TAIL] == 4 + 4 + 2 + 2
    for first, successors in ((10, 4), (20, 3), (30, 2), (40, 2)):
        assert sorted(row_of(held, first, first + 1)) == [(token, UNIT) for token in range(successors)]


@pytest.mark.parametrize("longest", [1, 2, 3, 16, LONGEST_ROW])
@pytest.mark.parametrize("limit", [0, 1 << 30])
def test_nothing_is_written_beyond_the_arrays(longest: int, limit: int) -> None:
    """Token by token, the blocks in use end within the pool and a quarter of the slots is empty."""
    random = np.random.default_rng(longest)
    held = table(COUNTS._replace(longest=longest), limit=limit)
    for seed in range(4):
        text = (random.zipf(1.1 + 0.2 * seed, 1000) % 60).astype(np.int32)
        for end in range(1, len(text) + 1):
            held.learn(text[:end], end - 1)
            for level in (held.young, held.old):
                used, tail, _ = level.counts.tolist()
                assert tail <= len(level.tokens) == len(level.weights)
                assert used <= 0.75 * len(level.slots)


@pytest.mark.parametrize(("longest", "block"), [(1, 2), (2, 2), (3, 4), (16, 16), (17, 32)])
def test_room_is_for_the_longest_rows(longest: int, block: int) -> None:
    """There is room for two rows where two of the largest blocks are left, and slots for both."""
    level = new_level(64, 100)
    level.counts[TAIL] = 100 - 2 * block
    assert has_room(level, 2, longest)
    level.counts[TAIL] += 1
    assert not has_room(level, 2, longest)
    level.counts[TAIL] = 0
    level.counts[0] = 46
    assert has_room(level, 2, longest)
    level.counts[0] = 47
    assert not has_room(level, 2, longest)


def test_contexts_with_the_same_place() -> None:
    """Rows that collide in the last slot wrap around to the first ones and are found there."""
    held = table()
    size, golden = len(held.young.slots), 0x9E3779B97F4A7C15
    last = [
        (a, b) for a in range(40) for b in range(40) if ((a << 21 | b) * golden % 2**64 >> 32) * size >> 32 == size - 1
    ][:12]
    assert len(last) == 12
    for i, (a, b) in enumerate(last):
        held.learn(ids([a, b, 100 + i]), 2)
    assert len(held.young.slots) == size
    assert held.young.slots[0]
    for i, (a, b) in enumerate(last):
        assert row_of(held, a, b) == [(100 + i, UNIT)]


def test_bytes_per_successor() -> None:
    """On text with the statistics of language a learned successor costs at most 16 bytes, all slack included."""
    random = np.random.default_rng(8)
    words = (random.zipf(1.25, 300_000) % 20_000).astype(np.int32)
    # Half of the tokens are those that followed their context before, as in any language.
    text = words.copy()
    repeated = random.random(len(text)) < 0.5
    for i in np.flatnonzero(repeated[2:]) + 2:
        text[i] = (int(text[i - 1]) * 31 + int(words[i]) % 3) % 20_000
    held = table()
    held.learn(text)
    assert held.successors > 200_000
    assert held.nbytes <= 16 * held.successors
