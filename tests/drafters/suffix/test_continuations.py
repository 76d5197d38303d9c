"""The most frequent nodes of a trie, against counting every prefix."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from speculant.core.tree import DraftTree
from speculant.drafters.suffix.continuations import most_frequent
from speculant.drafters.suffix.history import END

rows_of = st.lists(st.lists(st.integers(0, 2), max_size=4), min_size=1, max_size=30)


def rows(continuations: list[list[int]]) -> np.ndarray:
    return np.array([row + [END] * (4 - len(row)) for row in continuations], np.int32)


@given(rows_of, st.integers(1, 20), st.randoms())
def test_shares_are_those_of_every_prefix(continuations: list[list[int]], limit: int, random: object) -> None:
    """The nodes are the most frequent prefixes, each once, whatever the order of the continuations."""
    drafted = DraftTree(*most_frequent(rows(continuations), limit))
    counts = Counter(tuple(row[:n]) for row in continuations for n in range(1, len(row) + 1))
    paths = [tuple(drafted.tokens[drafted.path(i)].tolist()) for i in range(len(drafted))]
    assert len(set(paths)) == len(paths) == min(limit, len(counts))
    for path, share in zip(paths, drafted.weights.tolist(), strict=True):
        assert share == np.float32(counts[path] / len(continuations))
    assert [counts[path] for path in paths] == sorted(counts.values(), reverse=True)[:limit]

    random.shuffle(continuations)
    again = DraftTree(*most_frequent(rows(continuations), limit))
    assert drafted.tokens.tolist() == again.tokens.tolist()
    assert drafted.parents.tolist() == again.parents.tolist()


def test_equals_go_breadth_first() -> None:
    """Of two equally frequent continuations both are begun before either is gone on with, the smaller token first."""
    drafted = DraftTree(*most_frequent(rows([[2, 1], [0, 1]]), 3))
    assert drafted.tokens.tolist() == [0, 2, 1]
    assert drafted.parents.tolist() == [-1, -1, 0]


def test_nothing_follows() -> None:
    """A context that only ends documents has no draft."""
    assert len(most_frequent(rows([[], []]), 4)[0]) == 0
