"""Grids of test cases: the fast tests run a subset, `make test-slow` the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def in_turn(cases: Iterable[Any], values: Sequence[Any], *, whole: int = 0) -> list[Any]:
    """Return every case with every value; each case has one value in turn as a fast test, the others are slow tests.

    Args:
        cases: values of the first arguments; a tuple for several arguments.
        values: values of the last argument; a tuple for several arguments.
        whole: number of leading cases whose values are all fast tests.
    """
    return [
        pytest.param(
            *_arguments(case),
            *_arguments(value),
            marks=() if place < whole or place % len(values) == column else pytest.mark.slow,
        )
        for place, case in enumerate(cases)
        for column, value in enumerate(values)
    ]


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
