"""The numbers of a sparse cache's rows."""

from __future__ import annotations

import pytest

from speculant.core.errors import UsageError
from speculant.core.sparse_cache import RowBudget


@pytest.mark.parametrize("changes", [{"sinks": -1}, {"recent": 0}, {"retrieved": -1}, {"page": 0}])
def test_rows_that_cannot_be(changes: dict[str, int]) -> None:
    """Guards budgets: no negative numbers, a recent row at least, and pages that hold something."""
    with pytest.raises(UsageError, match="recent rows"):
        RowBudget(**({"sinks": 4, "recent": 8, "retrieved": 16, "page": 4} | changes))
