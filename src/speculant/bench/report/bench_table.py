"""The table of a benchmark: the same columns on the terminal, in Markdown and on the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from speculant.bench.report.summary import OVERALL

TOKENS_PER_SECOND, SPEEDUP, DECODING, MAT = "tokens/s", "speed-up", "decoding", "MAT"
SPREAD = "spread"
OVER_ONE = "over one"
HEADINGS = (
    "task", "method", "tokens", TOKENS_PER_SECOND, SPREAD, SPEEDUP, SPREAD, OVER_ONE, DECODING, MAT, "identical",
    "draft", "target", "rest", "memory MB",
)  # fmt: skip
NAME_COLUMNS = 2  # columns of words, aligned to the left

_LEGEND = {
    SPEEDUP: "tokens/s and speed-up: prompts included; decoding: the speed-up after the prompts.",
    SPREAD: "spread: least to most of the trials.",
    OVER_ONE: "over one: tokens/s over plain decoding of one request at a time.",
    MAT: "MAT: mean accepted tokens per target pass.",
    "identical": "identical: outputs (of batches: groups of them) equal to plain decoding's, of those that must be.",
    "draft": "draft, target, rest: shares of the time after the prompts.",
}


def bench_table(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the headings and a line of cells per row of `summary`; empty columns are omitted."""
    spread = any(row["trials"] > 1 for row in rows)
    kept = [i for i, heading in enumerate(HEADINGS) if spread or heading != SPREAD]
    if all(row.get("batch", 1) == 1 or row["speedup_over_one"] is None for row in rows):
        kept.remove(HEADINGS.index(OVER_ONE))
    lines = [HEADINGS, *(_cells(row, task_label(row, rows)) for row in rows)]
    return [tuple(line[i] for i in kept) for line in lines]


def legend(lines: Sequence[tuple[str, ...]]) -> str:
    """Return explanations of the shown columns of a table."""
    return " ".join(text for heading, text in _LEGEND.items() if heading in lines[0])


def task_label(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a row's task, with temperature and batch size where these differ among the rows."""
    parts = [str(row["task"])]
    if len({each["temperature"] for each in rows}) > 1:
        parts.append(f"T={row['temperature']:g}")
    if len({each.get("batch", 1) for each in rows}) > 1:
        parts.append(f"batch {row.get('batch', 1)}")
    return ", ".join(parts)


def markdown(lines: Sequence[tuple[str, ...]], *, name_columns: int = NAME_COLUMNS) -> str:
    """Return the lines as a Markdown table."""
    headings, *rest = lines
    rule = ["---" if i < name_columns else "---:" for i in range(len(headings))]
    return "\n".join("| " + " | ".join(line) + " |" for line in [headings, rule, *rest])


def divergence_sentences(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a sentence per task and method whose output differed from plain decoding's."""
    found = []
    for row in rows:
        places = row["divergences"]
        if places and row["task"] != OVERALL:
            ties = sum(place["near_tie"] is True for place in places)
            margins = [place["margin"] for place in places if place["margin"] is not None]
            widest = f", the widest by {max(margins):.3g}" if margins else ""
            found.append(
                f"{row['task']}, {row['method']}: {len(places)} of {row['compared']} outputs differ from plain "
                f"decoding's, first at token {min(place['position'] for place in places)}; {ties} of them at a "
                f"near-tie{widest}."
            )
    return found


def _cells(row: dict[str, Any], task: str) -> tuple[str, ...]:
    share, memory = row["time_share"], row["memory_bytes"]
    return (
        task,
        row["method"],
        str(row["tokens"]),
        _number(row["tokens_per_second"], 2),
        _range(row["tokens_per_second_spread"]),
        _number(row["speedup"], 2),
        _range(row["speedup_spread"]),
        _number(row.get("speedup_over_one"), 2),
        _number(row["decode_speedup"], 2),
        f"{row['mat']:.2f}",
        f"{row['identical']}/{row['compared']}" if row["compared"] else "-",
        *("-" if share[part] is None else f"{share[part]:.1%}" for part in ("draft", "target", "rest")),
        _number(memory and memory / 1e6, 1),
    )


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _range(values: Sequence[float] | None) -> str:
    return "-" if values is None else f"{values[0]:.2f}-{values[1]:.2f}"
