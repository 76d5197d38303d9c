"""A benchmark as one HTML page: the headline speed-up, the table, then charts per task and of scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from speculant.bench.report.bench_table import (
    DECODING,
    MAT,
    NAME_COLUMNS,
    SPEEDUP,
    TOKENS_PER_SECOND,
    bench_table,
    divergence_sentences,
    legend,
    task_label,
)
from speculant.bench.report.charts import Bars, Line, bar_chart, line_chart
from speculant.bench.report.render import MAX_DEPTH, Chart, Rows, render, series_colors, table
from speculant.bench.report.scaling_section import scaling_section
from speculant.bench.report.summary import OVERALL, noise
from speculant.bench.suite.rows import PLAIN

PARTS = ("draft", "target", "rest")
Colors = Mapping[str, int]


def bench_page(
    rows: Rows,
    *,
    labels: Sequence[str],
    notes: Sequence[str],
    warnings: Sequence[str] = (),
    environment: Mapping[str, Any],
    scaling: Mapping[str, Any] | None = None,
    created: datetime | None = None,
) -> str:
    """Return the page.

    Args:
        rows: rows of `summary.summary`.
        labels: important labels such as "forced".
        notes: how it was run, one sentence each.
        warnings: why the figures may be unreliable, one sentence each.
        environment: machine and versions.
        scaling: result of `scaling.measure.measure_scaling`, if requested.
        created: the date shown; None for now.

    Raises:
        UnsupportedError: Jinja2 or matplotlib is not installed.
    """
    colors = series_colors([row["method"] for row in rows])
    section = None if scaling is None else scaling_section(scaling)
    tasks: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        tasks.setdefault(task_label(row, rows), []).append(row)
    highlight = (TOKENS_PER_SECOND, SPEEDUP, DECODING, MAT)
    shown = bench_table(rows)
    values = {
        "title": "speculant bench",
        "command": "speculant bench",
        "headline": headline(rows) if rows else section and section.headline,
        "labels": labels,
        "lead": _lead(rows),
        "warnings": warnings,
        "table": table(shown, name_columns=NAME_COLUMNS, highlight=highlight) if rows else None,
        "explanation": legend(shown),
        "differences": divergence_sentences(rows),
        "colors": colors,
        "charts": _overview(tasks, colors) if rows else [],
        "tasks": [{"name": name, "charts": _task_charts(chosen, colors)} for name, chosen in tasks.items()],
        "scaling": section,
        "notes": notes,
        "machine": "; ".join(f"{name} {_format(value)}" for name, value in environment.items()),
    }
    return render("bench.html.j2", values, created=created)


def headline(rows: Rows) -> str:
    """Return the main result: the maximum speed-up over plain decoding, prompts included."""
    chosen = _main_rows(rows)
    task = "all tasks" if chosen[0]["task"] == OVERALL else chosen[0]["task"]
    drafting = [row for row in chosen if row["method"] != PLAIN and row["speedup"] is not None]
    if not drafting:
        return f"{PLAIN}: {chosen[0]['tokens_per_second'] or 0:.1f} tokens/s on {task}"
    best = max(drafting, key=lambda row: row["speedup"])
    low, high = best["speedup_spread"] or (None, None)
    spread = "" if low is None else f" ({low:.2f}x to {high:.2f}x over {best['trials']} trials)"
    doubt = "; not to be relied on, see the warning" if noise(best, rows) else ""
    return f"{best['method']}: {best['speedup']:.2f}x plain decoding on {task}{spread}, MAT {best['mat']:.2f}{doubt}"


def _main_rows(rows: Rows) -> Rows:
    """Return the rows of the first batch size and temperature over all tasks, or of the only task."""
    first = rows[0]
    same = [row for row in rows if all(row.get(name, 1) == first.get(name, 1) for name in ("batch", "temperature"))]
    return [row for row in same if row["task"] == OVERALL] or [row for row in same if row["task"] == first["task"]]


def _lead(rows: Rows) -> list[str]:
    """Return the speeds of all systems and whether their outputs equal those of plain decoding."""
    if not rows:
        return []
    chosen = _main_rows(rows)
    speeds = ", ".join(f"{row['method']} {row['tokens_per_second'] or 0:.1f}" for row in chosen)
    compared = [row for row in chosen if row["compared"] and row["method"] != PLAIN]
    lead = [f"Tokens per second, prompts included: {speeds}."]
    if compared:
        identical, total = (sum(row[name] for row in compared) for name in ("identical", "compared"))
        lead.append(f"Outputs identical to plain decoding's: {identical} of {total}.")
    return lead


def _overview(tasks: Mapping[str, Rows], colors: Colors) -> list[Chart]:
    return [
        _bars("Speed-up over plain decoding, prompts included", "speed-up", "speedup", tasks, colors, reference=1.0),
        _bars("Speed-up after the prompts", "speed-up", "decode_speedup", tasks, colors, reference=1.0),
        _bars("Mean accepted tokens per target pass (MAT)", "MAT", "mat", tasks, colors, reference=1.0),
        _bars("Tokens per second, prompts included", "tokens/s", "tokens_per_second", tasks, colors, decimals=1),
    ]


def _bars(
    caption: str,
    x_label: str,
    measure: str,
    tasks: Mapping[str, Rows],
    colors: Colors,
    *,
    reference: float | None = None,
    decimals: int = 2,
) -> Chart:
    values = {(task, row["method"]): row[measure] for task, rows in tasks.items() for row in rows}
    bars = [Bars(method, color, [values.get((task, method)) for task in tasks]) for method, color in colors.items()]
    chart = bar_chart(list(tasks), bars, label=caption, x_label=x_label, reference=reference, decimals=decimals)
    return Chart(caption, chart)


def _task_charts(rows: Rows, colors: Colors) -> list[Chart]:
    drafting = [row for row in rows if row["method"] != PLAIN]
    charts = [Chart("Milliseconds per token after the prompts", _time_by_part(rows, colors))]
    if any(row["by_depth"] for row in drafting):
        charts.append(Chart("Share of rounds accepted to each depth", _acceptance_by_depth(drafting, colors)))
    categories = [part["category"] for part in rows[0]["categories"]]
    if len(categories) > 1:
        charts.append(Chart("Speed-up by category", _speedup_by_category(rows, categories, colors)))
    return charts


def _time_by_part(rows: Rows, colors: Colors) -> str:
    bars = []
    for row in rows:
        share = row["time_share"]
        total = 1000 / row["decode_tokens_per_second"] if row["decode_tokens_per_second"] else None
        parts = [None if total is None or share[part] is None else total * share[part] for part in PARTS]
        bars.append(Bars(row["method"], colors[row["method"]], [*parts, total]))
    return bar_chart([*PARTS, "all"], bars, label="Milliseconds per token by part", x_label="ms per token")


def _acceptance_by_depth(rows: Rows, colors: Colors) -> str:
    lines = []
    for row in rows:
        points = [(part["depth"], part["accepted"] / max(1, row["rounds"])) for part in row["by_depth"][:MAX_DEPTH]]
        lines.append(Line(row["method"], colors[row["method"]], points))
    return line_chart(lines, label="Acceptance by depth", x_label="depth", y_label="share of rounds")


def _speedup_by_category(rows: Rows, categories: Sequence[str], colors: Colors) -> str:
    bars = [Bars(row["method"], colors[row["method"]], [part["speedup"] for part in row["categories"]]) for row in rows]
    return bar_chart(categories, bars, label="Speed-up by category", x_label="speed-up", reference=1.0)


def _format(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
