"""Two results side by side."""

from __future__ import annotations

from typing import Any

import pytest

from benches import row
from speculant.bench.report.comparison import compare, comparison_table, differences
from speculant.bench.report.summary import summary
from speculant.core.errors import UsageError


def result(*rows: Any, **more: Any) -> dict[str, Any]:
    return {"methods": summary(rows), "labels": [], "settings": {"limit": 1}, "environment": {}} | more


def test_ratios() -> None:
    """B over A for what both have, and what else is different."""
    before = result(row("none"), row("x", seconds=2.5), row("old"))
    after = result(row("none"), row("x", seconds=1.25), row("new"), labels=["forced"], settings={"limit": 2})
    rows = compare(before, after)
    assert [each["method"] for each in rows] == ["none", "x"]
    assert rows[1]["tokens_per_second"] == {"before": 4.0, "after": 8.0, "ratio": 2.0}
    assert rows[1]["speedup"]["ratio"] == 2.0
    assert comparison_table(rows)[2][2:4] == ("4.00 -> 8.00", "2.000x")
    assert differences(before, after) == ["labels: [] and ['forced']", "limit: 1 and 2"]


def test_nothing_in_common() -> None:
    """There is nothing to print then."""
    with pytest.raises(UsageError, match="one is of t by none, the other of u by none"):
        compare(result(row("none")), result(row("none", task="u")))
