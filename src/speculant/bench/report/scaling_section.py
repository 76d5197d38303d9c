"""How cost grows, as shown: a section of the page, and one of the Markdown table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from speculant.bench.report.charts import Line, line_chart
from speculant.bench.report.markup import figure, legend, table_of

TITLE = "How cost grows"
PARTS = ("pass", "attention in it", "the rest of it", "drafting", "cache", "drafter's memory", "peak")
HEADINGS = (
    "text", "nodes", "pass ms", "attention ms", "rest ms", "drafting ms", "cache MB", "drafter MB", "peak MB",
)  # fmt: skip
_COLORS = {name: i for i, name in enumerate(PARTS)}
ATTENTION = "its attention"
_NOISE = 1.1  # by which a part may seem to grow without growing

Growth = Mapping[str, Any]
Round = Mapping[str, Any]


def growth_section(growth: Growth) -> list[str]:
    """Return the lines of the page's section, of what `measure_growth` found."""
    told = [f"<p>{escape(sentence)}</p>" for sentence in (about(growth), *verdict(growth))]
    lines = [f"<h2>{TITLE}</h2>", *told, legend(_COLORS)]
    shortest = growth["prefixes"][0]["prefix"]
    sizes = _common_sizes(growth)
    charts = [
        _time_chart(f"A round of {_nodes(size)} by the tokens before it", _with_nodes(growth, size), "prefix")
        for size in (sizes[0], sizes[-1])
    ]
    by_nodes = [each for each in growth["rounds"] if each["prefix"] == shortest]
    charts.append(_time_chart(f"A round after {shortest} tokens by its nodes", by_nodes, "nodes"))
    charts.append(_memory_by_nodes(by_nodes, shortest))
    charts.append(_memory_by_text(growth, sizes[-1]))
    return [*lines, '<div class="charts">', *charts, "</div>", table_of(growth_table(growth), names=0)]


def growth_markdown(growth: Growth) -> list[str]:
    """Return the same as paragraphs of Markdown."""
    headings, *rest = growth_table(growth)
    table = [headings, ["---:"] * len(headings), *rest]
    return [
        f"## {TITLE}",
        "\n".join("| " + " | ".join(line) + " |" for line in table),
        about(growth),
        *verdict(growth),
    ]


def growth_table(growth: Growth) -> list[tuple[str, ...]]:
    """Return the headings and a line of cells per round."""
    held = {each["prefix"]: each for each in growth["prefixes"]}
    lines: list[tuple[str, ...]] = [HEADINGS]
    for each in growth["rounds"]:
        prefix = held[each["prefix"]]
        lines.append(
            (
                str(each["prefix"]),
                str(each["nodes"]),
                *(_shown(part(each), 1e3, 2) for part in (_pass, _attention, _rest, _drafting)),
                *(
                    _shown(size, 1e-6, 1)
                    for size in (prefix["cache_bytes"], prefix["drafter_bytes"], each["peak_bytes"])
                ),
            )
        )
    return lines


def about(growth: Growth) -> str:
    """Return what was measured, in a sentence or two."""
    clock = ", of the thread's own time" if growth["clock"] == "cpu" else ""
    return (
        "True passes of the model at growing lengths of text and sizes of draft, "
        f"medians of {growth['repeats']}{clock}. "
        f"Attention: what of a pass its attention took. Drafting: what {growth['drafter']} took to propose so many "
        "nodes and to learn from the pass. Cache: the buffers of keys and values, which double when they are full. "
        "Peak: the most memory held during a pass, above that of the loaded model, cache and logits included."
    )


def verdict(growth: Growth) -> list[str]:
    """Return by what each part grew from the shortest text to the longest, and whether any outgrew attention."""
    first, *_, last = growth["prefixes"]
    span = f"From {first['prefix']} to {last['prefix']} tokens (x{last['prefix'] / first['prefix']:.2f})"
    found = []
    for size in _common_sizes(growth):
        begin, *_, end = _with_nodes(growth, size)
        parts = {"the pass": _pass, ATTENTION: _attention, "all else in it": _rest, "drafting": _drafting}
        if not size:
            del parts["drafting"]  # nothing was drafted
        grown = {name: _ratio(part(begin), part(end)) for name, part in parts.items()}
        sentence = f"{span}, time with {_nodes(size)}: {_factors(grown)}."
        attention = grown[ATTENTION]
        if attention is not None:
            most = max(attention, 1) * _NOISE
            faster = [name for name, factor in grown.items() if factor is not None and factor > most]
            sentence += (
                f" Faster than attention grew {' and '.join(faster)}."
                if faster
                else " Nothing grew faster than attention."
            )
        found.append(sentence)
    begin, *_, end = _with_nodes(growth, _common_sizes(growth)[-1])
    memory = {
        "the cache": _ratio(first["cache_bytes"], last["cache_bytes"]),
        "the drafter's": _ratio(first["drafter_bytes"], last["drafter_bytes"]),
        "the peak": _ratio(begin["peak_bytes"], end["peak_bytes"]),
    }
    return [*found, f"{span}, memory: {_factors(memory)}."]


def _factors(grown: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} x{factor:.2f}" for name, factor in grown.items() if factor is not None)


def _time_chart(caption: str, rounds: Sequence[Round], across: str) -> str:
    parts = dict(zip(PARTS, (_pass, _attention, _rest, _drafting), strict=False))
    if not any(each["nodes"] for each in rounds):
        del parts["drafting"]
    lines = [_line(name, rounds, across, part, 1e3) for name, part in parts.items()]
    return figure(f"{caption}: milliseconds", line_chart(lines, label=caption, across=_AXES[across], up="ms"))


def _memory_by_text(growth: Growth, size: int) -> str:
    caption = f"Memory of a round of {_nodes(size)} by the tokens before it"
    lines = [
        _line("cache", growth["prefixes"], "prefix", lambda each: each["cache_bytes"], 1e-6),
        _line("drafter's memory", growth["prefixes"], "prefix", lambda each: each["drafter_bytes"], 1e-6),
        _line("peak", _with_nodes(growth, size), "prefix", lambda each: each["peak_bytes"], 1e-6),
    ]
    return figure(f"{caption}: MB", line_chart(lines, label=caption, across=_AXES["prefix"], up="MB"))


def _memory_by_nodes(rounds: Sequence[Round], length: int) -> str:
    caption = f"Memory of a round after {length} tokens by its nodes"
    lines = [_line("peak", rounds, "nodes", lambda each: each["peak_bytes"], 1e-6)]
    return figure(f"{caption}: MB", line_chart(lines, label=caption, across=_AXES["nodes"], up="MB"))


_AXES = {"prefix": "tokens before it", "nodes": "nodes"}


def _line(name: str, rows: Sequence[Round], across: str, part: Callable[[Round], Any], unit: float) -> Line:
    points = [(each[across], value * unit) for each in rows if (value := part(each)) is not None]
    return Line(name, _COLORS[name], points)


def _with_nodes(growth: Growth, size: int) -> list[Round]:
    return [each for each in growth["rounds"] if each["nodes"] == size]


def _common_sizes(growth: Growth) -> list[int]:
    """Return the sizes that were measured at every length."""
    longest = growth["prefixes"][-1]["prefix"]
    return [each["nodes"] for each in growth["rounds"] if each["prefix"] == longest]


def _nodes(size: int) -> str:
    return f"{size} nodes" if size else "no nodes"


def _pass(each: Round) -> float:
    return float(each["pass_seconds"])


def _attention(each: Round) -> float | None:
    found: float | None = each["attention_seconds"]
    return found


def _rest(each: Round) -> float | None:
    found: float | None = each["rest_seconds"]
    return found


def _drafting(each: Round) -> float:
    return float(each["draft_seconds"])


def _ratio(first: float | None, last: float | None) -> float | None:
    return last / first if first and last is not None else None


def _shown(value: float | None, unit: float, digits: int) -> str:
    return "-" if value is None else f"{value * unit:.{digits}f}"
