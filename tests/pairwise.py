"""Grids of which the fast tests run a part, and `make test-slow` the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def in_turn(cases: Iterable[Any], values: Sequence[Any], *, whole: int = 0) -> list[Any]:
    """Return each case with one of the values in turn, and with the others as slow tests.

    Args:
        cases: arguments; a tuple is several.
        values: of a further argument; a tuple is several.
        whole: how many cases, from the first on, meet every value among the fast tests.
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


def _arguments(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
