"""Rows of a head's own cache: committed ones, and those of a draft below them."""

from __future__ import annotations

import torch
from torch import Tensor

from speculant.drafters.heads.cache import HeadCache

CPU = torch.device("cpu")


def numbered(first: int, count: int) -> Tensor:
    """Return keys [1, n, 1] that tell rows apart."""
    return torch.arange(first, first + count, dtype=torch.float32).reshape(1, -1, 1)


def test_committed_rows_are_causal() -> None:
    """Guards positions and masks of committed rows, also where the first tokens of a text have none."""
    cache = HeadCache(1, first=3)
    positions, seen = cache.commit(2, CPU)
    cache.append(0, numbered(0, 2), numbered(0, 2))
    assert positions.tolist() == [3, 4]
    assert seen is not None
    assert seen.tolist() == [[True, False], [True, True]]
    positions, seen = cache.commit(1, CPU)
    assert positions.tolist() == [5]
    assert seen is None
    assert cache.length == 6


def test_rows_of_a_draft_see_their_ancestors() -> None:
    """Guards tree attention: a row sees committed rows, its ancestors and itself, no siblings."""
    cache = HeadCache(1)
    cache.commit(1, CPU)
    positions, seen = cache.branch([-1, -1], CPU)
    assert positions.tolist() == [1, 1]
    assert seen is not None
    assert seen.tolist() == [[True, True, False], [True, False, True]]
    positions, seen = cache.branch([1, 0], CPU)
    assert positions.tolist() == [2, 2]
    assert seen is not None
    assert seen.tolist() == [[True, False, True, True, False], [True, True, False, False, True]]


def test_rows_of_chains_see_all_others() -> None:
    """Guards rows without a mask: those of a chain alone, and not after a draft that branched was dropped."""
    cache = HeadCache(1)
    cache.commit(2, CPU)
    assert [cache.branch([row], CPU)[1] for row in (-1, 0, 1)] == [None] * 3
    assert cache.branch([1], CPU)[1] is not None
    cache.drop()
    for row in range(80):  # more than the first mask has room for
        assert cache.branch([row - 1], CPU)[1] is None
    _, seen = cache.branch([70, 80], CPU)
    assert seen is not None
    assert seen[:, 2:].tolist() == [
        [row <= 70 or row == 80 for row in range(82)],
        [row <= 70 or row >= 80 for row in range(82)],
    ]


def test_dropped_rows_are_overwritten() -> None:
    """Guards rollback: after a draft is dropped, committed rows stand where its rows stood, in every layer."""
    cache = HeadCache(2)
    cache.commit(2, CPU)
    for layer in range(2):
        cache.append(layer, numbered(0, 2), numbered(0, 2))
    cache.branch([-1], CPU)
    for layer in range(2):
        cache.append(layer, numbered(7, 1), numbered(7, 1))
    cache.drop()
    cache.commit(1, CPU)
    for layer in range(2):
        keys, values = cache.append(layer, numbered(2, 1), numbered(12, 1))
        assert keys.flatten().tolist() == [0, 1, 2]
        assert values.flatten().tolist() == [0, 1, 12]


def test_buffers_grow_and_crop() -> None:
    """Guards texts beyond the first buffer, and cropping to a length, which counts rows that are missing."""
    cache = HeadCache(1, first=10)
    for start in range(0, 600, 200):
        cache.commit(200, CPU)
        keys, _ = cache.append(0, numbered(start, 200), numbered(start, 200))
    assert keys.flatten().tolist() == list(range(600))
    cache.crop(15)
    assert (cache.committed, cache.length) == (5, 15)
    cache.crop(3)
    assert (cache.committed, cache.length) == (0, 10)
