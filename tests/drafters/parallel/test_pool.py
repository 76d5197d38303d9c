"""The n-gram pool: the most recent n-grams of each first token, bounded both ways."""

from __future__ import annotations

from speculant.drafters.parallel.pool import NgramPool


def test_the_most_recent_come_first_and_repeats_count_once() -> None:
    """An n-gram that is found again moves to the front, and of too many the oldest is dropped."""
    pool = NgramPool(candidates=2, first_tokens=9)
    for ngram in ([1, 2], [1, 3], [1, 2], [1, 4]):
        pool.add(ngram)
    assert pool.after(1) == [(4,), (2,)]
    assert pool.after(2) == []


def test_it_is_bounded() -> None:
    """Guards memory on long texts: the first tokens that were added least recently are dropped."""
    pool = NgramPool(candidates=3, first_tokens=4)
    for token in range(1000):
        pool.add([token % 7, token, token + 1])
        assert len(pool) <= 12
    assert [token for token in range(7) if pool.after(token)] == [2, 3, 4, 5]
