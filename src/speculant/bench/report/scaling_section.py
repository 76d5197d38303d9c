"""The page section on how the cost of a round scales with text and draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from speculant.bench.report.charts import Line, line_chart
from speculant.bench.report.render import Chart, Table, table
from speculant.bench.report.scaling_table import (
    TITLE,
    Round,
    Scaling,
    common_sizes,
    node_count,
    rounds_of_size,
    scaling_findings,
    scaling_headline,
    scaling_method,
    scaling_table,
)

TIMES = {"pass": "pass_seconds", "attention": "attention_seconds", "rest of the pass": "rest_seconds",
         "drafting": "draft_seconds"}  # fmt: skip
MEMORY = {"cache": "cache_bytes", "drafter's memory": "drafter_bytes", "peak": "peak_bytes"}
COLORS: Mapping[str, int] = {name: i for i, name in enumerate((*TIMES, *MEMORY))}
AXES = {"prefix": "tokens of text before the pass", "nodes": "nodes"}


@dataclass(frozen=True, slots=True)
class ScalingSection:
    """The values for the template.

    Attributes:
        headline: the page's headline if nothing else was measured.
        sentences: findings, then what was measured.
        colors: colours of the parts of a round.
    """

    headline: str
    sentences: Sequence[str]
    colors: Mapping[str, int]
    charts: Sequence[Chart]
    table: Table
    title: str = TITLE


def scaling_section(scaling: Scaling) -> ScalingSection:
    """Return the section for a result of `measure_scaling`."""
    shortest = scaling["prefixes"][0]["prefix"]
    sizes = common_sizes(scaling)
    by_nodes = [each for each in scaling["rounds"] if each["prefix"] == shortest]
    charts = [
        _time_chart(f"A round with {node_count(size)}, by length of text", rounds_of_size(scaling, size), "prefix")
        for size in (sizes[0], sizes[-1])
    ]
    charts.append(_time_chart(f"A round after {shortest} tokens, by nodes", by_nodes, "nodes"))
    charts.append(_memory_chart(f"Memory after {shortest} tokens, by nodes", {"peak": by_nodes}, "nodes"))
    by_text = {
        "cache": scaling["prefixes"],
        "drafter's memory": scaling["prefixes"],
        "peak": rounds_of_size(scaling, sizes[-1]),
    }
    charts.append(_memory_chart(f"Memory with {node_count(sizes[-1])}, by length of text", by_text, "prefix"))
    return ScalingSection(
        headline=scaling_headline(scaling),
        sentences=[*scaling_findings(scaling), scaling_method(scaling)],
        colors=COLORS,
        charts=charts,
        table=table(scaling_table(scaling), name_columns=0),
    )


def _time_chart(caption: str, rounds: Sequence[Round], across: str) -> Chart:
    drafted = any(each["nodes"] for each in rounds)
    names = [name for name in TIMES if drafted or name != "drafting"]
    lines = [_line(name, rounds, across, TIMES[name], 1e3) for name in names]
    return Chart(f"{caption}: milliseconds", line_chart(lines, label=caption, x_label=AXES[across], y_label="ms"))


def _memory_chart(caption: str, rows: Mapping[str, Sequence[Mapping[str, Any]]], across: str) -> Chart:
    lines = [_line(name, each, across, MEMORY[name], 1e-6) for name, each in rows.items()]
    return Chart(f"{caption}: MB", line_chart(lines, label=caption, x_label=AXES[across], y_label="MB"))


def _line(name: str, rows: Sequence[Mapping[str, Any]], across: str, measure: str, unit: float) -> Line:
    points = [(each[across], each[measure] * unit) for each in rows if each[measure] is not None]
    return Line(name, COLORS[name], points)
