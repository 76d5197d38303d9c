"""A replay as one HTML page: the headline figure, the table, the coloured text, then charts per file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import Any

from speculant.bench.replay.traces import RECORDED
from speculant.bench.report.charts import Bars, Line, bar_chart, line_chart
from speculant.bench.report.excerpts import ExcerptToken
from speculant.bench.report.render import MAX_DEPTH, Chart, Rows, render, series_colors, table
from speculant.bench.report.replay_table import NAME_COLUMNS, SPEEDUP, replay_table, tell_apart
from speculant.core.stats import compute_mat

EXPLANATION = """MAT: mean accepted tokens per target pass, the target's own included; plain decoding has 1. Times are
microseconds. learn: updating the memory. ECE: expected calibration error of the drafter's probabilities."""

Excerpts = Mapping[tuple[str, str], Sequence[ExcerptToken]]
Colors = Mapping[str, int]


def replay_page(
    rows: Rows, excerpts: Excerpts, notes: Sequence[str], *, token_ids: bool = False, created: datetime | None = None
) -> str:
    """Return the page.

    Args:
        rows: rows of `metrics.run_metrics`, one per file, method and form of drafts.
        excerpts: pieces of text by file and method, named as in `replay_table.tell_apart`.
        notes: how the replay was run, one sentence each.
        token_ids: whether the excerpts are token ids, because there is no tokenizer.
        created: the date shown; None for now.

    Raises:
        UnsupportedError: Jinja2 or matplotlib is not installed.
    """
    lines = replay_table(rows)
    rows = tell_apart(rows)
    names = list(dict.fromkeys(row["file"] for row in rows))
    colors = series_colors([row["method"] for row in rows])
    ranked = pool_mat(rows)
    best = best_method(rows)
    texts = {name: _texts(name, rows, excerpts) for name in names}
    values = {
        "title": "speculant replay",
        "command": "speculant replay",
        "headline": headline(rows),
        "labels": [],
        "lead": _lead(ranked),
        "warnings": [],
        "table": table(lines, name_columns=NAME_COLUMNS, highlight=("MAT", SPEEDUP)),
        "explanation": EXPLANATION,
        "token_ids": token_ids,
        "texts": [_select_excerpt(texts[name], best) for name in names if texts[name]],
        "colors": colors,
        "charts": _overview(rows, names, colors),
        "files": [
            {
                "name": name,
                "colors": {row["method"]: colors[row["method"]] for row in rows if row["file"] == name},
                "charts": _file_charts([row for row in rows if row["file"] == name], colors),
                "texts": [each for each in texts[name] if each is not _select_excerpt(texts[name], best)],
            }
            for name in names
        ],
        "notes": notes,
    }
    return render("replay.html.j2", values, created=created)


def headline(rows: Rows) -> str:
    """Return the main result: the best method, by expected speed-up if pass costs are known, otherwise by MAT."""
    ranked = pool_mat(rows)
    method = best_method(rows)
    chosen = [row for row in rows if row["method"] == method]
    where = f"on {chosen[0]['file']}" if len(chosen) == 1 else f"over {len(chosen)} files"
    speedups = [row["speedup"] for row in chosen if row["speedup"] is not None]
    if not speedups:
        return f"{method}: {ranked[method]:.2f} tokens per target pass {where}"
    low, high = f"{min(speedups):.2f}x", f"{max(speedups):.2f}x"
    factor = low if low == high else f"{low} to {high}"
    return f"{method}: {factor} speed-up expected {where}, {ranked[method]:.2f} tokens per target pass"


def best_method(rows: Rows) -> str:
    """Return the method with the highest median expected speed-up or, if unknown, the highest pooled MAT."""
    ranked = pool_mat(rows)
    speedups = {
        method: [row["speedup"] for row in rows if row["method"] == method and row["speedup"] is not None]
        for method in ranked
    }
    known = {method: median(values) for method, values in speedups.items() if values}
    return max(known, key=lambda method: known[method]) if known else next(iter(ranked))


def pool_mat(rows: Rows) -> dict[str, float]:
    """Return the MAT over all files of each method that was replayed on all of them, the best first.

    Acceptance recorded with the trace is excluded, unless there is nothing else.
    """
    replayed = [row for row in rows if not row["method"].startswith(RECORDED)] or list(rows)
    found = {}
    for method in dict.fromkeys(row["method"] for row in replayed):
        chosen = [row for row in replayed if row["method"] == method]
        rounds = sum(row["rounds"] for row in chosen)
        found[method] = compute_mat(sum(row["tokens"] for row in chosen), rounds, texts=0)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _lead(ranked: Mapping[str, float]) -> list[str]:
    if len(ranked) < 2:
        return []
    return [f"Mean accepted tokens (MAT): {', '.join(f'{name} {mat:.2f}' for name, mat in ranked.items())}."]


def _texts(file: str, rows: Rows, excerpts: Excerpts) -> list[dict[str, Any]]:
    """Return the excerpts of a file, the method with the highest MAT first."""
    ordered = sorted((row for row in rows if row["file"] == file), key=lambda row: -row["mat"])
    return [
        {"file": file, "method": row["method"], "pieces": excerpts[file, row["method"]]}
        for row in ordered
        if (file, row["method"]) in excerpts
    ]


def _select_excerpt(texts: Sequence[dict[str, Any]], method: str) -> dict[str, Any] | None:
    """Return the excerpt of the method, or the first one."""
    return next((each for each in texts if each["method"] == method), texts[0] if texts else None)


def _overview(rows: Rows, files: Sequence[str], colors: Colors) -> list[Chart]:
    def values(measure: str) -> list[Bars]:
        found = {(row["file"], row["method"]): row[measure] for row in rows}
        return [Bars(name, color, [found.get((file, name)) for file in files]) for name, color in colors.items()]

    groups = short_names(files)
    mat = "Mean accepted tokens per target pass (MAT)"
    charts = [Chart(mat, bar_chart(groups, values("mat"), label=mat, x_label="MAT", reference=1.0))]
    if any(row["speedup"] is not None for row in rows):
        faster = "Expected speed-up over plain decoding"
        chart = bar_chart(groups, values("speedup"), label=faster, x_label="speed-up", reference=1.0)
        charts.append(Chart(faster, chart))
    return charts


def _file_charts(rows: Rows, colors: Colors) -> list[Chart]:
    charts = [
        Chart("Share of rounds accepted to each depth", _by_depth(rows, colors)),
        Chart("MAT over time, as the memory fills", _over_time(rows, colors)),
        Chart("Reliability of predicted acceptance", _reliability(rows, colors)),
    ]
    categories = list(dict.fromkeys(part["category"] for row in rows for part in row["categories"]))
    if len(categories) > 1:
        charts.append(Chart("MAT by category", _by_category(rows, categories, colors)))
    return charts


def _by_category(rows: Rows, categories: Sequence[str], colors: Colors) -> str:
    bars = []
    for row in rows:
        mats = {part["category"]: part["mat"] for part in row["categories"]}
        bars.append(Bars(row["method"], colors[row["method"]], [mats.get(name) for name in categories]))
    return bar_chart(categories, bars, label="MAT by category and method", x_label="MAT", reference=1.0)


def _by_depth(rows: Rows, colors: Colors) -> str:
    lines = []
    for row in rows:
        points = [(part["depth"], part["accepted"] / row["rounds"]) for part in row["by_depth"][:MAX_DEPTH]]
        lines.append(Line(row["method"], colors[row["method"]], points))
    return line_chart(lines, label="Acceptance by depth", x_label="depth", y_label="share of rounds")


def _over_time(rows: Rows, colors: Colors) -> str:
    lines = []
    for row in rows:
        points = [(part["requests"], part["mat"]) for part in row["over_time"]]
        lines.append(Line(row["method"], colors[row["method"]], points))
    return line_chart(lines, label="MAT over time", x_label="requests so far", y_label="MAT", y_min=1.0)


def _reliability(rows: Rows, colors: Colors) -> str:
    lines = []
    for row in rows:
        points = [(part["predicted"], part["observed"]) for part in row["reliability"]]
        lines.append(Line(row["method"], colors[row["method"]], points))
    return line_chart(
        lines, label="Reliability diagram", x_label="predicted probability", y_label="share accepted", unit_square=True
    )


def short_names(files: Sequence[str]) -> list[str]:
    """Return the names without their common prefix up to a dash."""
    common = files[0]
    for file in files:
        while not file.startswith(common):
            common = common[:-1]
    cut = common.rfind("-") + 1
    return [file[cut:] or file for file in files]
