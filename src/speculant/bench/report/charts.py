"""Charts as inline SVG, drawn by matplotlib.

The output is deterministic: ids are hashed with a salt of the chart's own data, so that they are also unique within a
page, and no date is written. Colours are CSS variables of the page (`--series-0`, ..., `--faint`, `--line`, `--page`),
which follow the reader's light or dark theme; no pyplot state is modified.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from speculant.bench.report.extra import missing_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = (
    "#1769aa", "#b8500a", "#0b8457", "#a8327d", "#8a6d00", "#2b8fc9",
    "#7a4a38", "#5b5b5b", "#6a8f00", "#5b45a8", "#00808c", "#c0392b",
)  # fmt: skip
FAINT, LINE, PAGE = "#6b7078", "#d9dce1", "#fdfdfd"
_WIDTH, _HEIGHT = 5.4, 3.2  # inches; the page scales a chart to its column
_BAR = 0.2  # inches
_UNUSED_ID = re.compile(r' id="[A-Za-z][A-Za-z0-9.]*_\d+"')  # ids of groups, which repeat from chart to chart
_STYLE = re.compile(r"<style.*?</style>", re.DOTALL)
_HEAD = re.compile(r'<svg [^>]*viewBox="([\d. ]+)"[^>]*>')


@dataclass(frozen=True, slots=True)
class Line:
    """A named line through points (x, y), in a colour given by its number in the palette."""

    name: str
    color: int
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Bars:
    """A named bar per group, in a colour given by its number in the palette; None for missing values."""

    name: str
    color: int
    values: Sequence[float | None]


def line_chart(
    lines: Sequence[Line], *, label: str, x_label: str, y_label: str, y_min: float = 0.0, unit_square: bool = False
) -> str:
    """Return a chart of lines as an SVG element.

    Args:
        lines: lines to draw.
        label: description of the chart, for screen readers.
        x_label, y_label: the names of the axes.
        y_min: start of the vertical axis.
        unit_square: whether both axes run from 0 to 1 with the diagonal drawn.
    """
    with _drawing(label, lines, _HEIGHT) as (figure, axes):
        from matplotlib.ticker import MaxNLocator

        axes.grid(visible=True, color=LINE, linewidth=0.6)
        if unit_square:
            axes.plot([0, 1], [0, 1], color=FAINT, linestyle="--", linewidth=1)
            axes.set_xlim(0, 1)
            axes.set_ylim(0, 1)
        for line in lines:
            xs, ys = [x for x, _ in line.points], [y for _, y in line.points]
            axes.plot(xs, ys, color=_color(line.color), linewidth=1.8, marker="o", markersize=3.5, clip_on=False)
        if not unit_square:
            axes.set_ylim(bottom=y_min)
            axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        return _svg(figure, label)


def bar_chart(
    groups: Sequence[str],
    bars: Sequence[Bars],
    *,
    label: str,
    x_label: str,
    reference: float | None = None,
    decimals: int = 2,
) -> str:
    """Return a chart of horizontal bars from zero, each with its value, as an SVG element.

    Args:
        groups: names of the groups, from the top; a single group is labelled by its bars instead.
        bars: one series per colour.
        label: description of the chart, for screen readers.
        x_label: the name of the value axis.
        reference: a value to mark by a line, such as 1.0 for speed-ups.
        decimals: digits of the value labels.
    """
    height = 0.6 + len(groups) * (_BAR * len(bars) + 0.14)
    with _drawing(label, (groups, bars), height) as (figure, axes):
        axes.grid(visible=True, axis="x", color=LINE, linewidth=0.6)
        share = 0.86 / len(bars)
        for place, series in enumerate(bars):
            drawn = [(i, value) for i, value in enumerate(series.values) if value is not None]
            positions = [i - 0.43 + (place + 0.5) * share for i, _ in drawn]
            values = [value for _, value in drawn]
            container = axes.barh(positions, values, height=share * 0.9, color=_color(series.color))
            backing = {"facecolor": PAGE, "edgecolor": "none", "pad": 0.5}  # hides the reference line behind a label
            axes.bar_label(container, fmt=f"%.{decimals}f", padding=3, color=FAINT, fontsize=9, bbox=backing)
        if reference is not None:
            axes.axvline(reference, color=FAINT, linestyle="--", linewidth=1)
        if len(groups) == 1:
            axes.set_yticks([-0.43 + (i + 0.5) * share for i in range(len(bars))], [each.name for each in bars])
        else:
            axes.set_yticks(range(len(groups)), list(groups))
        axes.set_ylim(len(groups) - 0.5, -0.5)
        maximum = max((value for each in bars for value in each.values if value is not None), default=1.0)
        axes.set_xlim(0, 1.12 * max(maximum, reference or 0.0) or 1.0)
        axes.set_xlabel(x_label)
        return _svg(figure, label)


@contextmanager
def _drawing(label: str, data: object, height: float) -> Iterator[tuple[Figure, Axes]]:
    """Yield an empty figure whose text is kept as text."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_extra() from error
    with matplotlib.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": f"{label}{data}",
            "text.parse_math": False,  # a name may contain dollar signs
            "font.sans-serif": ["DejaVu Sans"],
            "font.size": 10,
        }
    ):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        figure.patch.set_visible(False)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        axes.set_axisbelow(True)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, colors=FAINT)
        axes.xaxis.label.set_color(FAINT)
        axes.yaxis.label.set_color(FAINT)
        yield figure, axes


def _svg(figure: Figure, label: str) -> str:
    """Return the figure as an SVG element in the colours of the page."""
    text = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(text, format="svg", metadata=nothing)
    svg = text.getvalue()
    svg = _STYLE.sub("", _UNUSED_ID.sub("", svg[svg.index("<svg") :]))
    svg = _HEAD.sub(rf'<svg viewBox="\1" role="img" aria-label="{escape(label)}">', svg, count=1)
    for number, color in enumerate(PALETTE):
        svg = svg.replace(color, f"var(--series-{number})")
    for color, name in ((FAINT, "faint"), (LINE, "line"), (PAGE, "page")):
        svg = svg.replace(color, f"var(--{name})")
    return svg.strip()


def _color(number: int) -> str:
    return PALETTE[number % len(PALETTE)]
