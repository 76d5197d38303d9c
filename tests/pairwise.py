"""Grids of test cases: the fast tests run a subset, `make test-slow` the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def in_turn(cases: Iterable[Any], values: Sequence[Any], *, whole: int = 0, every: int = 1, skip: int = 0) -> list[Any]:
    """Return every case with every value; each case has one value in turn as a fast test, the others are slow tests.

    Args:
        cases: values of the first arguments; a tuple for several arguments.
        values: values of the last argument; a tuple for several arguments.
        whole: number of leading cases whose values are all fast tests.
        every: only one of this many cases has fast tests.
        skip: number of leading cases before the first one that has.
    """
    return [
        pytest.param(
            *_arguments(case),
            *_arguments(value),
            marks=() if place < whole or (place - skip) % (every * len(values)) == every * column else pytest.mark.slow,
        )
        for place, case in enumerate(cases)
        for column, value in enumerate(values)
    ]


def paired(*axes: Sequence[Any]) -> list[Any]:
    """Return all cases of three axes or more; the fast tests are few, in which any two values of two axes meet.

    Args:
        axes: values of each argument; a tuple for several arguments.
    """
    places = [range(len(axis)) for axis in axes]
    fast = few(*places)
    return [
        pytest.param(
            *(argument for axis, place in zip(axes, case, strict=True) for argument in _arguments(axis[place])),
            marks=() if case in fast else pytest.mark.slow,
        )
        for case in product(*places)
    ]


def few(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return few cases in which any two values of two axes meet."""
    pairs = {case: set(combinations(enumerate(case), 2)) for case in product(*axes)}
    missing, found = set().union(*pairs.values()), list[tuple[Any, ...]]()
    while missing:
        found.append(max(pairs, key=lambda case: len(pairs[case] & missing)))
        missing -= pairs[found[-1]]
    return found


def every_other(cases: Iterable[Any], *, first: bool) -> list[Any]:
    """Return all cases, every second one as a fast test and the others as slow tests.

    Two tests that share cases, one with `first` and one without, meet each case once among the fast tests.
    """
    return [
        pytest.param(*_arguments(case), marks=() if (place % 2 == 0) == first else pytest.mark.slow)
        for place, case in enumerate(cases)
    ]


def _arguments(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
