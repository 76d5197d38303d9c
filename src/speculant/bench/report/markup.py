"""The parts that pages are made of: their style, which needs nothing from elsewhere, legends, tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from speculant.bench.report.charts import COLORS

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

END = "</body></html>"


def begin(title: str, heading: str) -> list[str]:
    """Return the lines of a page up to its heading."""
    return [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_style()}</style></head><body>",
        f"<h1>{escape(heading)}</h1>",
    ]


def legend(colors: Mapping[str, int]) -> str:
    """Return the names in their colours."""
    items = "".join(f'<li><i class="s{i % COLORS}"></i>{escape(name)}</li>' for name, i in colors.items())
    return f'<ul class="legend">{items}</ul>'


def table_of(lines: Sequence[Sequence[str]], *, names: int) -> str:
    """Return a table of headings and lines of cells; a rule stands where the first cell changes.

    Args:
        lines: the headings first.
        names: columns of words, which stand to the left.
    """
    headings, *rest = lines
    above = "".join(f"<th{_kind(i, names)}>{escape(cell)}</th>" for i, cell in enumerate(headings))
    body, before = [], ""
    for line in rest:
        cells = "".join(f"<td{_kind(i, names)}>{escape(cell)}</td>" for i, cell in enumerate(line))
        body.append(f'<tr class="first">{cells}</tr>' if line[0] != before else f"<tr>{cells}</tr>")
        before = line[0]
    return f'<div class="scroll"><table><thead><tr>{above}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def figure(caption: str, chart: str) -> str:
    """Return a chart with what it shows."""
    return f"<figure>{chart}<figcaption>{escape(caption)}</figcaption></figure>"


def _kind(column: int, names: int) -> str:
    return ' class="name"' if column < names else ""


def _style() -> str:
    colors = "".join(f"svg .s{i}{{stroke:var(--s{i});fill:var(--s{i})}}.legend .s{i}{{background:var(--s{i})}}"
                     for i in range(COLORS))  # fmt: skip
    light, dark = (" ".join(f"--s{i}:#{code};" for i, code in enumerate(codes.split())) for codes in (_LIGHT, _DARK))
    return STYLE.replace("LIGHT", light).replace("DARK", dark) + colors + "svg rect{stroke:none!important}"
