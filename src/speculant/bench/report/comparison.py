"""Compares two benchmark results, by the ratios of B to A."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from speculant.bench.report.bench_table import task_label
from speculant.core.errors import UsageError

MEASURES = ("tokens_per_second", "speedup", "decode_speedup", "mat")
HEADINGS = ("task", "method", "tokens/s", "ratio", "speed-up", "ratio", "decoding", "ratio", "MAT", "ratio")
Result = Mapping[str, Any]


def compare(before: Result, after: Result) -> list[dict[str, Any]]:
    """Return a row per task, temperature, batch size and method that both have, with each measure and its ratio.

    Args:
        before, after: A and B, from `read_result`.

    Raises:
        UsageError: they have none in common.
    """
    earlier = {_key(row): row for row in before["methods"]}
    rows = []
    for row in after["methods"]:
        if (other := earlier.get(_key(row))) is not None:
            rows.append(
                {name: row.get(name, 1) for name in ("task", "temperature", "batch", "method")}
                | {name: _ratio(other[name], row[name]) for name in MEASURES}
            )
    if not rows:
        raise UsageError(
            f"the two results have no task and method in common: one is of {_contents(before)}, the other of "
            f"{_contents(after)}. Compare runs of the same --tasks and --methods."
        )
    return rows


def differences(before: Result, after: Result) -> list[str]:
    """Return a line per label, setting and part of the environment in which two results differ."""
    found = []
    for part in ("labels", "settings", "environment"):
        one, other = before.get(part), after.get(part)
        if isinstance(one, dict) and isinstance(other, dict):
            for name in sorted({*one, *other}):
                if one.get(name) != other.get(name):
                    found.append(f"{name}: {one.get(name)} and {other.get(name)}")
        elif one != other:
            found.append(f"{part}: {one} and {other}")
    return found


def comparison_table(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the headings and a line of cells per row of `compare`."""
    found: list[tuple[str, ...]] = [HEADINGS]
    for row in rows:
        cells = [task_label(row, rows), row["method"]]
        for name in MEASURES:
            each = row[name]
            cells.append(f"{_number(each['before'])} -> {_number(each['after'])}")
            cells.append("-" if each["ratio"] is None else f"{each['ratio']:.3f}x")
        found.append(tuple(cells))
    return found


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["task"], row["temperature"], row.get("batch", 1), row["method"]


def _contents(result: Result) -> str:
    tasks, methods = (dict.fromkeys(row[part] for row in result["methods"]) for part in ("task", "method"))
    return f"{', '.join(tasks)} by {', '.join(methods)}"


def _ratio(before: float | None, after: float | None) -> dict[str, float | None]:
    ratio = after / before if before and after is not None else None
    return {"before": before, "after": after, "ratio": ratio}


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
