"""A replay as one HTML page that needs nothing else: no scripts, fonts or pictures from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from speculant.bench.charts import COLORS, Bars, Line, bar_chart, line_chart
from speculant.bench.excerpts import Piece
from speculant.bench.table import NAMES, table

DEEPEST = 24
_LIGHT = "1769aa b8500a 0b8457 a8327d 8a6d00 2b8fc9 7a4a38 5b5b5b 6a8f00 5b45a8 00808c c0392b"
_DARK = "5aa9e6 f0894a 3fc796 e07bbb d9b82e 86cdf5 c89a86 b0b0b0 a9cf3a a693f0 3fc4d0 f27b6d"

STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1c1e21; --faint: #6b7078; --line: #d9dce1; --drafted: #cdebd9;
  --bonus: #fbe3b8; LIGHT }
@media (prefers-color-scheme: dark) { :root { --page: #15171a; --ink: #e6e8eb; --faint: #9aa0a8; --line: #33373d;
  --drafted: #1d4a34; --bonus: #5c4514; DARK } }
body { background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; max-width: 1000px;
  margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.2em; margin-top: 2.5em; } h3 { font-size: 1em; margin: 1em 0 .2em; }
p, figcaption { color: var(--faint); } figure { margin: 0; flex: 1 1 400px; min-width: 0; }
.scroll { overflow-x: auto; } .charts { display: flex; flex-wrap: wrap; gap: 1em; }
table { border-collapse: collapse; font-size: .85em; font-variant-numeric: tabular-nums; white-space: nowrap; }
th, td { padding: .2em .6em; text-align: right; border-bottom: 1px solid var(--line); }
th.name, td.name { text-align: left; } tr.first td { border-top: 2px solid var(--line); }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--faint); font: 11px system-ui, sans-serif; }
svg .middle { text-anchor: middle; } svg .end { text-anchor: end; }
svg .grid { stroke: var(--line); stroke-width: .6; } svg .guide { stroke: var(--faint); stroke-dasharray: 4 4; }
svg g path { fill: none; stroke-width: 1.8; }
.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2em 1.2em; font-size: .9em; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; border-radius: 2px; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.7 ui-monospace, monospace; }
.text span { border-radius: 3px; } .text .d { background: var(--drafted); } .text .b { background: var(--bonus); }
.text .r { border-left: 2px solid var(--faint); padding-left: 1px; }
details { margin: .3em 0; } summary { cursor: pointer; }
"""

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
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>speculant replay</title><style>{_style()}</style></head><body>",
            "<h1>What drafting would bring</h1>",
            f"<p>{' '.join(map(escape, notes))}</p>",
            _legend(colors),
            _table(rows),
            f"<p>{LEGEND}</p>",
            *([_by_group(rows, colors)] if len(files) > 1 else []),
            *(_file(file, [row for row in rows if row["file"] == file], colors, excerpts) for file in files),
            "</body></html>",
        ]
    )


def _style() -> str:
    colors = "".join(f"svg .s{i}{{stroke:var(--s{i});fill:var(--s{i})}}.legend .s{i}{{background:var(--s{i})}}"
                     for i in range(COLORS))  # fmt: skip
    light, dark = (" ".join(f"--s{i}:#{code};" for i, code in enumerate(codes.split())) for codes in (_LIGHT, _DARK))
    return STYLE.replace("LIGHT", light).replace("DARK", dark) + colors + "svg rect{stroke:none!important}"


def _legend(colors: Mapping[str, int]) -> str:
    items = "".join(f'<li><i class="s{i % COLORS}"></i>{escape(name)}</li>' for name, i in colors.items())
    return f'<ul class="legend">{items}</ul>'


def _table(rows: Rows) -> str:
    headings, *lines = table(rows)
    above = "".join(f"<th{_kind(i)}>{escape(cell)}</th>" for i, cell in enumerate(headings))
    body, before = [], ""
    for line in lines:
        cells = "".join(f"<td{_kind(i)}>{escape(cell)}</td>" for i, cell in enumerate(line))
        body.append(f'<tr class="first">{cells}</tr>' if line[0] != before else f"<tr>{cells}</tr>")
        before = line[0]
    return f'<div class="scroll"><table><thead><tr>{above}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def _kind(column: int) -> str:
    return ' class="name"' if column < NAMES else ""


def _by_group(rows: Rows, colors: Mapping[str, int]) -> str:
    files = list(dict.fromkeys(row["file"] for row in rows))
    mats = {(row["file"], row["method"]): row["mat"] for row in rows}
    bars = [Bars(name, i, [mats.get((file, name)) for file in files]) for name, i in colors.items()]
    return "<h2>MAT by file</h2>" + bar_chart(_short(files), bars, label="MAT by file and method", up="MAT")


def _file(file: str, rows: Rows, colors: Mapping[str, int], excerpts: Excerpts) -> str:
    present = {name: i for name, i in colors.items() if any(row["method"] == name for row in rows)}
    charts = [
        _figure("Acceptance by depth: the share of rounds whose draft was right so far", _depths(rows, colors)),
        _figure("MAT over time: does the memory learn?", _times(rows, colors)),
        _figure("Reliability: predicted against observed acceptance of a node", _reliability(rows, colors)),
    ]
    categories = list(dict.fromkeys(part["category"] for row in rows for part in row["categories"]))
    if len(categories) > 1:
        charts.insert(0, _figure("MAT by category", _categories(rows, categories, colors)))
    shown = sorted((row for row in rows if (file, row["method"]) in excerpts), key=lambda row: -row["mat"])
    texts = "".join(
        f"<details{' open' if number == 0 else ''}><summary>{escape(row['method'])}</summary>"
        f'<div class="text">{_text(excerpts[file, row["method"]])}</div></details>'
        for number, row in enumerate(shown)
    )
    return "".join(
        [
            f"<h2>{escape(file)}</h2>",
            _legend(present),
            f'<div class="charts">{"".join(charts)}</div>',
            f"<h3>Where the text came from</h3>{SOURCES}{texts}" if texts else "",
        ]
    )


def _figure(caption: str, chart: str) -> str:
    return f"<figure>{chart}<figcaption>{escape(caption)}</figcaption></figure>"


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
