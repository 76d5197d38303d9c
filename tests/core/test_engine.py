"""Rows that a cache may keep."""

from __future__ import annotations

import pytest

from speculant.core.engine import check_path

PARENTS = (-1, 0, 1, 1)


@pytest.mark.parametrize("rows", [[], [0], [0, 1, 3]])
def test_paths_are_kept(rows: list[int]) -> None:
    """Guards what rounds commit."""
    check_path(rows, PARENTS)


@pytest.mark.parametrize("rows", [[1], [0, 2], [0, 1, 2, 3], [4], [-1]])
def test_what_is_no_path_is_refused(rows: list[int]) -> None:
    """Guards the cache against rows that do not follow each other from the committed text down."""
    with pytest.raises(ValueError, match="not a path"):
        check_path(rows, PARENTS)


def test_only_the_beginning_of_a_chain_is_a_path() -> None:
    """Guards caches that verify chains only, and those without uncommitted rows."""
    chain = range(-1, 2)
    check_path([0, 1], chain)
    for rows, parents in (([1], chain), ([0, 1, 2, 3], chain), ([0], ())):
        with pytest.raises(ValueError, match="not a path"):
            check_path(rows, parents)
