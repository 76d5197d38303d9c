"""A benchmark as one HTML page that needs nothing else: no scripts, fonts or pictures from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from speculant.bench.report.charts import Bars, Line, bar_chart, line_chart
from speculant.bench.report.markup import END, begin, figure, legend, table_of
from speculant.bench.report.scaling_section import growth_section
from speculant.bench.report.bench_table import LEGEND, NAMES, differences, scores, task_name
from speculant.bench.systems.system import PLAIN

DEEPEST = 24
PARTS = ("draft", "target", "rest")
Figures = Sequence[dict[str, Any]]


def sheet(
    figures: Figures,
    *,
    labels: Sequence[str],
    notes: Sequence[str],
    environment: Mapping[str, Any],
    growth: Mapping[str, Any] | None = None,
) -> str:
    """Return the page.

    Args:
        figures: of `summary.summary`.
        labels: what a reader must not overlook, such as "forced".
        notes: how it was run, a sentence each.
        environment: machine and versions.
        growth: of `growth.measure_growth`, if that was asked for.
    """
    what = "What drafting brings" if figures else "What decoding costs"
    heading = f"{what}{f' ({chr(44).join(labels)})' if labels else ''}".replace(",", ", ")
    machine = "; ".join(f"{name} {_shown(value)}" for name, value in environment.items())
    return "\n".join(
        [
            *begin("speculant bench", heading),
            f"<p>{' '.join(map(escape, notes))}</p>",
            *(_measured(figures) if figures else []),
            *(growth_section(growth) if growth is not None else []),
            f"<h2>Machine</h2><p>{escape(machine)}</p>",
            END,
        ]
    )


def _measured(figures: Figures) -> list[str]:
    """Return what there is to say of methods."""
    colors = {name: i for i, name in enumerate(dict.fromkeys(row["method"] for row in figures))}
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in figures:
        groups.setdefault(task_name(row, figures), []).append(row)
    return [
        legend(colors),
        '<div class="charts">',
        _bars("Speed-up over plain decoding, prompts included", "speed-up", "speedup", groups, colors),
        _bars("Speed-up after the prompts", "speed-up", "decode_speedup", groups, colors),
        _bars("Mean tokens per target pass", "MAT", "mat", groups, colors),
        _bars("Tokens per second, prompts included", "tokens/s", "tokens_per_second", groups, colors),
        "</div>",
        table_of(scores(figures), names=NAMES),
        f"<p>{escape(LEGEND)}</p>",
        *(f"<p>{escape(sentence)}</p>" for sentence in differences(figures)),
        *(_details(name, rows, colors) for name, rows in groups.items()),
    ]


def _bars(caption: str, up: str, name: str, groups: Mapping[str, Figures], colors: Mapping[str, int]) -> str:
    values = {(group, row["method"]): row[name] for group, rows in groups.items() for row in rows}
    bars = [Bars(method, i, [values.get((group, method)) for group in groups]) for method, i in colors.items()]
    return figure(caption, bar_chart(list(groups), bars, label=caption, up=up))


def _details(group: str, rows: Figures, colors: Mapping[str, int]) -> str:
    drafting = [row for row in rows if row["method"] != PLAIN]
    charts = [figure("Where the time after the prompts went: milliseconds per token", _times(rows, colors))]
    if any(row["by_depth"] for row in drafting):
        charts.append(
            figure("Acceptance by depth: the share of rounds whose draft was right so far", _depths(drafting, colors))
        )
    categories = [part["category"] for part in rows[0]["categories"]]
    if len(categories) > 1:
        bars = [
            Bars(row["method"], colors[row["method"]], [part["speedup"] for part in row["categories"]]) for row in rows
        ]
        charts.append(
            figure("Speed-up by category", bar_chart(categories, bars, label="Speed-up by category", up="speed-up"))
        )
    return f'<h2>{escape(group)}</h2><div class="charts">{"".join(charts)}</div>'


def _times(rows: Figures, colors: Mapping[str, int]) -> str:
    bars = []
    for row in rows:
        share = row["time_share"]
        each = 1000 / row["decode_tokens_per_second"] if row["decode_tokens_per_second"] else None
        known = [None if each is None or share[part] is None else each * share[part] for part in PARTS]
        bars.append(Bars(row["method"], colors[row["method"]], [*known, each]))
    return bar_chart([*PARTS, "all"], bars, label="Milliseconds per token by part and method", up="ms per token")


def _depths(rows: Figures, colors: Mapping[str, int]) -> str:
    lines = []
    for row in rows:
        points = [(part["depth"], part["accepted"] / max(1, row["rounds"])) for part in row["by_depth"][:DEEPEST]]
        lines.append(Line(row["method"], colors[row["method"]], points))
    return line_chart(lines, label="Acceptance by depth", across="depth", up="share of rounds")


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
