"""Fills the templates of pages. A page is one self-contained file: no external scripts, fonts or pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from speculant import __version__
from speculant.bench.report.charts import PALETTE
from speculant.bench.report.extra import missing_extra

TEMPLATES = "templates"
MAX_DEPTH = 24  # levels that charts by depth show
DARK_PALETTE = (
    "#5aa9e6", "#f0894a", "#3fc796", "#e07bbb", "#d9b82e", "#86cdf5",
    "#c89a86", "#b0b0b0", "#a9cf3a", "#a693f0", "#3fc4d0", "#f27b6d",
)  # fmt: skip


Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart, as an SVG element, and its caption."""

    caption: str
    svg: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table on a page.

    Attributes:
        headings: column headings.
        rows: cells, as text.
        name_columns: number of columns on the left that contain words.
        highlighted: (row, column) of bold cells.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    name_columns: int
    highlighted: frozenset[tuple[int, int]] = frozenset()


def table(lines: Sequence[Sequence[str]], *, name_columns: int, highlight: Sequence[str] = ()) -> Table:
    """Return a table with the largest value of each group set in bold.

    Args:
        lines: the headings, then the rows; rows with the same first cell form a group.
        name_columns: number of columns on the left that contain words.
        highlight: headings of the columns whose largest value is set in bold.
    """
    headings, *rows = lines
    marked = set()
    for column in (i for i, heading in enumerate(headings) if heading in highlight):
        for group in dict.fromkeys(row[0] for row in rows):
            values = {i: float(row[column]) for i, row in enumerate(rows) if row[0] == group and row[column] != "-"}
            if len(values) > 1:
                best = max(values.values())
                marked |= {(i, column) for i, value in values.items() if value == best}
    return Table(headings, rows, name_columns, frozenset(marked))


def series_colors(names: Sequence[str]) -> dict[str, int]:
    """Return a palette index for each name, in order of appearance."""
    return {name: i % len(PALETTE) for i, name in enumerate(dict.fromkeys(names))}


def render(template: str, values: Mapping[str, Any], *, created: datetime | None = None) -> str:
    """Return a page.

    Args:
        template: a file in `templates/`.
        values: values for the template; text is escaped.
        created: the date shown; None for now.

    Raises:
        UnsupportedError: Jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise missing_extra() from error
    environment = Environment(
        loader=PackageLoader("speculant.bench.report", TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    date = (created or datetime.now(timezone.utc)).astimezone(timezone.utc)
    return environment.get_template(template).render(
        values, version=__version__, date=f"{date:%Y-%m-%d %H:%M} UTC", palette=PALETTE, dark_palette=DARK_PALETTE
    )
