"""A replay as one HTML page that needs nothing else: no scripts, fonts or pictures from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from speculant.bench.report.charts import Bars, Line, bar_chart, line_chart
from speculant.bench.report.excerpts import Piece
from speculant.bench.report.markup import END, begin, figure, legend, table_of
from speculant.bench.report.replay_table import NAMES, table

DEEPEST = 24

LEGEND = """MAT: mean tokens per target pass, the target's own included. ECE: expected calibration error of the
drafter's probabilities. Times are microseconds."""

SOURCES = """<p class="text"><span class="d">accepted draft</span> <span class="b">the target's own token</span>
<span class="r">a round begins</span></p>"""

Rows = Sequence[dict[str, Any]]
Excerpts = Mapping[tuple[str, str], Sequence[Piece]]


def page(rows: Rows, excerpts: Excerpts, notes: Sequence[str]) -> str:
    """Return the page.

    Args:
        rows: of `figures.run_figures`.
        excerpts: by file and method.
        notes: how the replay was run, a sentence each.
    """
    files = list(dict.fromkeys(row["file"] for row in rows))
    colors = {name: i for i, name in enumerate(dict.fromkeys(row["method"] for row in rows))}
    return "\n".join(
        [
            *begin("speculant replay", "What drafting would bring"),
            f"<p>{' '.join(map(escape, notes))}</p>",
            legend(colors),
            table_of(table(rows), names=NAMES),
            f"<p>{LEGEND}</p>",
            *([_by_group(rows, colors)] if len(files) > 1 else []),
            *(_file(file, [row for row in rows if row["file"] == file], colors, excerpts) for file in files),
            END,
        ]
    )


def _by_group(rows: Rows, colors: Mapping[str, int]) -> str:
    files = list(dict.fromkeys(row["file"] for row in rows))
    mats = {(row["file"], row["method"]): row["mat"] for row in rows}
    bars = [Bars(name, i, [mats.get((file, name)) for file in files]) for name, i in colors.items()]
    return "<h2>MAT by file</h2>" + bar_chart(_short(files), bars, label="MAT by file and method", up="MAT")


def _file(file: str, rows: Rows, colors: Mapping[str, int], excerpts: Excerpts) -> str:
    present = {name: i for name, i in colors.items() if any(row["method"] == name for row in rows)}
    charts = [
        figure("Acceptance by depth: the share of rounds whose draft was right so far", _depths(rows, colors)),
        figure("MAT over time: does the memory learn?", _times(rows, colors)),
        figure("Reliability: predicted against observed acceptance of a node", _reliability(rows, colors)),
    ]
    categories = list(dict.fromkeys(part["category"] for row in rows for part in row["categories"]))
    if len(categories) > 1:
        charts.insert(0, figure("MAT by category", _categories(rows, categories, colors)))
    shown = sorted((row for row in rows if (file, row["method"]) in excerpts), key=lambda row: -row["mat"])
    texts = "".join(
        f"<details{' open' if number == 0 else ''}><summary>{escape(row['method'])}</summary>"
        f'<div class="text">{_text(excerpts[file, row["method"]])}</div></details>'
        for number, row in enumerate(shown)
    )
    return "".join(
        [
            f"<h2>{escape(file)}</h2>",
            legend(present),
            f'<div class="charts">{"".join(charts)}</div>',
            f"<h3>Where the text came from</h3>{SOURCES}{texts}" if texts else "",
        ]
    )


def _categories(rows: Rows, categories: Sequence[str], colors: Mapping[str, int]) -> str:
    bars = []
    for row in rows:
        mats = {part["category"]: part["mat"] for part in row["categories"]}
        bars.append(Bars(row["method"], colors[row["method"]], [mats.get(name) for name in categories]))
    return bar_chart(categories, bars, label="MAT by category and method", up="MAT")


def _depths(rows: Rows, colors: Mapping[str, int]) -> str:
    lines = []
    for row in rows:
        points = [(part["depth"], part["accepted"] / row["rounds"]) for part in row["by_depth"][:DEEPEST]]
        lines.append(Line(row["method"], colors[row["method"]], points))
    return line_chart(lines, label="Acceptance by depth", across="depth", up="share of rounds")


def _times(rows: Rows, colors: Mapping[str, int]) -> str:
    lines = []
    for row in rows:
        points = [(part["requests"], part["mat"]) for part in row["over_time"]]
        lines.append(Line(row["method"], colors[row["method"]], points))
    return line_chart(lines, label="MAT over time", across="requests played", up="MAT", low=1.0)


def _reliability(rows: Rows, colors: Mapping[str, int]) -> str:
    lines = []
    for row in rows:
        points = [(part["predicted"], part["observed"]) for part in row["reliability"]]
        lines.append(Line(row["method"], colors[row["method"]], points))
    return line_chart(lines, label="Reliability diagram", across="predicted", up="observed", whole=True)


def _text(pieces: Sequence[Piece]) -> str:
    return "".join(
        f'<span class="{"d" if piece.drafted else "b"}{" r" if piece.begins else ""}">{escape(piece.text)}</span>'
        for piece in pieces
    )


def _short(files: Sequence[str]) -> list[str]:
    """Return the names without what they all begin with, up to a dash."""
    common = files[0]
    for file in files:
        while not file.startswith(common):
            common = common[:-1]
    cut = common.rfind("-") + 1
    return [file[cut:] or file for file in files]
