"""The table of a replay: the same columns on the terminal and on the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from speculant.options.drafting import AUTOMATIC

HEADINGS = (
    "file", "method", "drafts", "tokens", "rounds", "MAT", "nodes/round", "draft us", "p50", "p99", "learn us/token",
    "memory MB", "ECE",
)  # fmt: skip
SPEEDUP = "speed-up"
LEGEND = "MAT: mean accepted tokens per target pass, the target's own token included; plain decoding has 1."
NAME_COLUMNS = 3  # columns of words, aligned to the left


def replay_table(rows: Sequence[dict[str, Any]], *, categories: bool = False) -> list[tuple[str, ...]]:
    """Return the headings and a line of cells per row.

    A column of expected speed-ups is added if a step-cost curve was given.

    Args:
        rows: rows of `metrics.run_metrics`.
        categories: whether each row is followed by a line per category.
    """
    expected = any(row["speedup"] is not None for row in rows)
    lines: list[tuple[str, ...]] = [(*HEADINGS, SPEEDUP) if expected else HEADINGS]
    for row in rows:
        lines.append(_cells(row["file"], row, expected))
        for part in row["categories"] if categories and len(row["categories"]) > 1 else []:
            lines.append(
                _cells(
                    f"  {part['category']}", part | {name: row[name] for name in ("method", "shape", "nodes")}, expected
                )
            )
    return lines


def draft_form(row: dict[str, Any]) -> str:
    """Return the shape and size of a row's drafts, as in "tree of 64", or "tree, auto" where each has its own size."""
    return f"{row['shape']}, auto" if row["nodes"] == AUTOMATIC else f"{row['shape']} of {row['nodes']}"


def tell_apart(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with the form of drafts added to the names of methods that have several forms."""
    forms = {row["method"]: {draft_form(each) for each in rows if each["method"] == row["method"]} for row in rows}
    return [
        row | {"method": f"{row['method']}, {draft_form(row)}"} if len(forms[row["method"]]) > 1 else row
        for row in rows
    ]


def _cells(file: str, row: dict[str, Any], expected: bool) -> tuple[str, ...]:
    draft, learn, memory = row["draft_us"], row["learn_us"], row.get("memory_bytes")
    cells = (
        file,
        row["method"],
        draft_form(row),
        str(row["tokens"]),
        str(row["rounds"]),
        f"{row['mat']:.3f}",
        _number(row["nodes_per_round"], 1),
        *(_number(draft[part], 0) for part in ("mean", "p50", "p99")),
        _number(learn and learn["per_token"], 1),
        _number(memory and memory / 1e6, 1),
        _number(row.get("ece"), 3),
    )
    return (*cells, _number(row["speedup"], 2)) if expected else cells


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
